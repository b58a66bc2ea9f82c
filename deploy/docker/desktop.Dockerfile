# Environment workers of sandboxed desktops: the streams image with bubblewrap, an X server, applications and LibreOffice.
# The packages are those of `make desktop`. The client of MCP servers is left out.
ARG STREAMS=dart-streams/streams:dev
FROM ${STREAMS}
USER root
RUN apt-get update \
    && apt-get install -y --no-install-recommends \
        adwaita-icon-theme at-spi2-core bubblewrap dbus-daemon dconf-editor fonts-dejavu-core fonts-liberation \
        galculator gsettings-desktop-schemas libreoffice-calc libreoffice-gtk3 libreoffice-impress libreoffice-writer \
        mousepad openbox pcmanfm portfolio-filemanager python3-aiohttp python3-pil python3-pyatspi python3-uno \
        python3-xlib wmctrl xclip xdg-utils xvfb zenity \
    && rm -rf /var/lib/apt/lists/*
USER dart
