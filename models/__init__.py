"""From weights to a servable artifact."""
