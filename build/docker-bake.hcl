# Docker's way to build what scripts/build_image staged: `docker buildx bake TARGET` inside the staged folder, where
# docker-bake.override.json gives the variables their values.
variable "FLAVOUR" { default = "cpu" }
variable "CPU_BASE" { default = null }
variable "CUDA_BASE" { default = null }
variable "SOURCE" { default = "" }
variable "REVISION" { default = "" }
variable "VERSION" { default = "" }
variable "LOCK_SHA256" { default = "" }
variable "SERIES_SHA256" { default = "" }
# Files and image are dated to this second, so that two builds are the same bytes.
variable "SOURCE_DATE_EPOCH" { default = "0" }

group "default" {
  targets = ["cpu"]
}

target "image" {
  name       = tgt
  matrix     = { tgt = ["cpu", "cuda", "ci", "verify"] }
  context    = "."
  dockerfile = "Containerfile"
  target     = tgt
  platforms  = ["linux/amd64"]
  tags       = ["decideploy:${tgt}"]
  args = {
    FLAVOUR           = FLAVOUR
    CPU_BASE          = CPU_BASE
    CUDA_BASE         = CUDA_BASE
    SOURCE            = SOURCE
    REVISION          = REVISION
    VERSION           = VERSION
    LOCK_SHA256       = LOCK_SHA256
    SERIES_SHA256     = SERIES_SHA256
    SOURCE_DATE_EPOCH = SOURCE_DATE_EPOCH
  }
  # Provenance inside the image names the time of the build: it is written beside the wheel instead.
  attest = ["type=provenance,disabled=true"]
  output = ["type=docker,rewrite-timestamp=true"]
}
