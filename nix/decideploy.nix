# The `decideploy` command, run from source. `serve` needs the patched vLLM beside it, and `build` a --wheelhouse:
# outputs of this flake do both.
{ pkgs, project }:

let
  python = pkgs.python313.withPackages (packages: [
    packages.cyclonedx-python-lib
    packages.filelock
    packages.httpx
    packages.huggingface-hub
    packages.jinja2
    packages.numpy
    packages.nvidia-ml-py
    packages.packaging
    packages.psutil
    packages.pydantic
    packages.pyyaml
    packages.rich
    packages.safetensors
    packages.tokenizers
  ]);
in
pkgs.writeShellScriptBin "decideploy" ''
  export PATH=${pkgs.git}/bin:$PATH PYTHONPATH=${project.source}/src PYTHONDONTWRITEBYTECODE=1
  exec ${python}/bin/python3 -m decideploy "$@"
''
