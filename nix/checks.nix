# `nix flake check`: at least one check for every output, and what the outputs are made from.
{
  pkgs,
  project,
  recipes,
  decideploy,
  apps,
  formatter,
  develop,
}:

let
  python = pkgs.python313.withPackages (packages: [
    packages.filelock
    packages.hypothesis
    packages.installer
    packages.packaging
    packages.pydantic
    packages.pytest
    packages.pytest-timeout
    packages.rich
  ]);

  # Tools write caches beside the sources, and the store is read-only.
  inTree =
    name: packages: script:
    pkgs.runCommand name { nativeBuildInputs = packages; } ''
      export HOME=$TMPDIR DECIDEPLOY_HOME=$TMPDIR/home PYTHONDONTWRITEBYTECODE=1
      cp -r ${project.tree} tree
      chmod -R u+w tree
      cd tree
      export PYTHONPATH=$PWD/src
      ${script}
      touch $out
    '';

  # With coreutils and grep alone, so that a fault of our own reading cannot hide.
  wheelEqualsLock =
    name:
    let
      recipe = recipes.${name};
      inherit (recipe.lock.wheel) filename sha256;
    in
    pkgs.runCommand "vllm-wheel-${name}-equals-lock" { } ''
      echo "${sha256}  ${recipe.wheel}/${filename}" | sha256sum --check --strict
      grep -q ${sha256} ${recipe.wheel}/${filename}.provenance.json
      touch $out
    '';
in
{
  vllm-wheel-cpu = wheelEqualsLock "cpu";
  vllm-wheel-cuda = wheelEqualsLock "cuda";

  series-applies = inTree "series-applies" [ pkgs.git python ] ''
    python3 -m decideploy.build.lint
    python3 nix/apply_series.py ${recipes.cpu.upstream} ${recipes.cuda.upstream}
  '';

  locks-current = inTree "locks-current" [ python ] ''
    python3 scripts/update_pins.py --check
  '';

  unit-tests = inTree "unit-tests" [ pkgs.git python ] ''
    python3 -m pytest -q -p no:cacheprovider tests/build
  '';

  lint = inTree "lint" [ pkgs.ruff ] ''
    ruff check --no-cache .
    ruff format --no-cache --check .
  '';

  formatter = inTree "formatter" [ formatter ] ''
    decideploy-nixfmt --check
  '';

  decideploy = inTree "decideploy" [ decideploy ] ''
    decideploy --version | grep -x "decideploy [0-9.]*"
  '';

  app-verify = inTree "app-verify" [ decideploy ] ''
    decideploy demo-model $PWD/model
    ${apps.verify.program} $PWD/model
    rm model/tokenizer.json
    if ${apps.verify.program} $PWD/model; then echo "a model without a tokenizer passed" >&2; exit 1; fi
  '';

  app-plan = inTree "app-plan" [ decideploy ] ''
    decideploy demo-model $PWD/model
    ${apps.plan.program} $PWD/model --hardware h100 --json >plan.json
    grep -q '"argv"' plan.json
  '';

  app-probe = inTree "app-probe" [ ] ''
    ${apps.probe.program} --json >probe.json
    grep -q '"schema_version"' probe.json
  '';

  app-serve = inTree "app-serve" [ ] ''
    printf '#!/bin/sh\n"$DECIDEPLOY_PYTHON" --version && echo "serve $*"\n' >scripts/serve
    ${apps.serve.program} --check | grep -x "serve --check"
    rm scripts/serve
    if ${apps.serve.program}; then echo "served without a checkout" >&2; exit 1; fi
  '';

  dev-shell = inTree "dev-shell" develop.packages ''
    for tool in buildah decideploy git hadolint nixfmt pre-commit python3 ruff shellcheck shfmt skopeo uv yamllint; do
      command -v $tool
    done
  '';
}
