"""The kiosk: from a stick and an empty machine to a disk that holds a verified image (docs/operate/kiosk.md)."""
