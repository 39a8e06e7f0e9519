"""One question to the health port, for the image's HEALTHCHECK: exit code 0 if the answer is 200.

Run by itself, with nothing but the standard library: it starts every few seconds, beside workers that want the CPU.
"""

import http.client
import sys
import urllib.error
import urllib.request

SECONDS = 4.0


def probe(url: str) -> str:
    """What is wrong with the answer of a URL, in words; empty for 200."""
    try:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(url, timeout=SECONDS) as answer:
            return "" if answer.status == 200 else f"{url} answers {answer.status}"
    except urllib.error.HTTPError as error:
        return f"{url} answers {error.code}: {error.read(500).decode(errors='replace').strip()}"
    except (OSError, http.client.HTTPException) as error:
        return f"{url}: {error}"


if __name__ == "__main__":
    wrong = probe(sys.argv[1])
    if wrong:
        print(wrong)
    sys.exit(bool(wrong))
