{{- /* An object of the kustomize folders, which this chart links: (list $ FILE). Helm's labels are added. */ -}}
{{- define "decideploy.shipped" -}}
{{- $root := first . -}}
{{- $object := $root.Files.Get (last .) | fromYaml -}}
{{- $own := dict "app.kubernetes.io/instance" $root.Release.Name "app.kubernetes.io/managed-by" $root.Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version) -}}
{{- $_ := set $object.metadata "labels" (merge $own $object.metadata.labels) -}}
{{- $object | toYaml -}}
{{- end -}}
