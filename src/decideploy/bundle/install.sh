#!/bin/sh
# Install a bundle of decideploy on a host without a network; see install.py, or: ./install.sh --help
#
#   PYTHON=/path/to/python3 ./install.sh --prefix DIR [--existing-torch]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
if ! command -v "${PYTHON:=python3}" >/dev/null 2>&1; then
  echo "install.sh: there is no $PYTHON here; name an interpreter in PYTHON" >&2
  exit 2
fi
# -I: neither the caller's variables nor modules beside the script have a say.
exec "$PYTHON" -I "$here/install.py" "$here" "$@"
