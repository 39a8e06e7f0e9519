"""From a pod to a configuration. No torch anywhere: it runs in milliseconds before the JVM starts."""
