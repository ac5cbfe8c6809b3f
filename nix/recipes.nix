# For each recipe its lock, the upstream wheel by the lock's sha256, and the patched wheel.
{ pkgs, project }:

let
  # All that `decideploy build` imports; the wheel does not depend on what else the project needs.
  python = pkgs.python313.withPackages (packages: [
    packages.cyclonedx-python-lib
    packages.filelock
    packages.packaging
    packages.pydantic
    packages.rich
  ]);

  fetchUpstream =
    upstream:
    let
      parts = builtins.match "([^-]+)-([^-]+)-([^-]+)-([^-]+)-([^-]+)\\.whl" upstream.wheel.filename;
      part = builtins.elemAt parts;
    in
    pkgs.fetchPypi {
      pname = part 0;
      version = part 1;
      format = "wheel";
      dist = part 2;
      python = part 2;
      abi = part 3;
      platform = part 4;
      inherit (upstream.wheel) sha256;
    };

  # The same command as outside, so that it checks lock, series and result in the same way.
  buildWheel =
    name: lock: upstream:
    pkgs.runCommand "vllm-wheel-${name}"
      {
        nativeBuildInputs = [
          pkgs.git
          python
        ];
      }
      ''
        export DECIDEPLOY_HOME=$TMPDIR/home PYTHONPATH=${project.source}/src PYTHONDONTWRITEBYTECODE=1
        mkdir wheelhouse
        ln -s ${upstream} wheelhouse/${lock.upstream.wheel.filename}
        python3 -m decideploy build --recipe ${name} --wheelhouse wheelhouse --out $out
      '';

  recipe =
    name:
    let
      lock = project.readLock name;
      upstream = fetchUpstream lock.upstream;
    in
    {
      inherit lock upstream;
      wheel = buildWheel name lock upstream;
    };
in
{
  cpu = recipe "cpu";
  cuda = recipe "cuda";
}
