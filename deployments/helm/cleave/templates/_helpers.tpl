{{/* Name of all objects: the release's, which mostly is the chart's. */}}
{{- define "cleave.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains (include "cleave.name" .) .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "cleave.name" .) | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "cleave.name" -}}{{ .Values.nameOverride | default .Chart.Name }}{{- end -}}

{{/* The DRA driver. */}}
{{- define "cleave.driver" -}}{{ ternary "gpu.nvidia.com" "gpu.cleave.dev" .Values.nvidiaCompatible }}{{- end -}}

{{/* The name that the driver had before nvidiaCompatible was switched. */}}
{{- define "cleave.otherDriver" -}}{{ ternary "gpu.cleave.dev" "gpu.nvidia.com" .Values.nvidiaCompatible }}{{- end -}}

{{- define "cleave.selector" -}}
app.kubernetes.io/name: {{ include "cleave.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "cleave.labels" -}}
{{ include "cleave.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/*
Labels and annotations of a component's pods, the values' included: a dict with root, component, values, and the chart's own
annotations. By the chart's own labels its objects find the pods, so that others cannot take their place. The version of the chart is
not among them: pods are the same for another one.
*/}}
{{- define "cleave.podMetadata" -}}
{{- $own := dict "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/component" .component -}}
labels:
  {{- merge (include "cleave.selector" .root | fromYaml) $own .values.podLabels | toYaml | nindent 2 }}
{{- with merge (dict) (.annotations | default dict) .values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Where the pods of a component run that is not on each GPU node: a dict with root, component, values, and required, whether no two
of them may be on one node. */}}
{{- define "cleave.elsewhere" -}}
{{- $term := dict "topologyKey" "kubernetes.io/hostname" "labelSelector" (dict "matchLabels"
      (merge (dict "app.kubernetes.io/component" .component) (include "cleave.selector" .root | fromYaml))) -}}
{{- $apart := dict -}}
{{- if .required -}}
{{- $apart = dict "requiredDuringSchedulingIgnoredDuringExecution" (list $term) -}}
{{- else if hasKey .values "replicas" -}}
{{- $apart = dict "preferredDuringSchedulingIgnoredDuringExecution" (list (dict "weight" 100 "podAffinityTerm" $term)) -}}
{{- end -}}
{{- with .values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with merge (dict) (deepCopy .values.affinity) (ternary (dict "podAntiAffinity" $apart) (dict) (gt (len $apart) 0)) }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The user of pods without privileges. OpenShift chooses one for each namespace, and refuses others. */}}
{{- define "cleave.user" -}}
runAsNonRoot: true
{{- if not .Values.openshift.enabled }}
runAsUser: 65532
runAsGroup: 65532
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "cleave.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cleave.schedulerImage" -}}
{{ include "cleave.otherImage" (list . "scheduler") }}
{{- end -}}

{{- define "cleave.dashboardImage" -}}
{{ include "cleave.otherImage" (list . "dashboard") }}
{{- end -}}

{{/* The image of a part with values of its own: that of the plugin with a suffix, unless they say otherwise. */}}
{{- define "cleave.otherImage" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $image := (index $root.Values $part).image -}}
{{- $repository := $image.repository | default (printf "%s-%s" $root.Values.image.repository $part) -}}
{{- if $image.digest -}}
{{ $repository }}@{{ $image.digest }}
{{- else -}}
{{ $repository }}:{{ $image.tag | default $root.Values.image.tag | default $root.Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* Whether a driver on the host is looked for, and one of the GPU operator. */}}
{{- define "cleave.driverOnHost" -}}{{- if has .Values.driver.root (list "auto" "/") -}}true{{- end -}}{{- end -}}

{{/* Where pods go: to nodes with GPUs. */}}
{{- define "cleave.placement" -}}
priorityClassName: {{ .Values.priorityClassName }}
{{- with .Values.nodes.selector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
        {{- range .Values.nodes.match | default (list (dict "key" "kubernetes.io/os" "operator" "In" "values" (list "linux"))) }}
        - matchExpressions: [{{ toJson . }}]
        {{- end }}
{{- with .Values.nodes.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* A DeviceClass: a dict with root, name, resource and expression. */}}
{{- define "cleave.deviceClass" -}}
apiVersion: resource.k8s.io/v1
kind: DeviceClass
metadata:
  name: {{ .name }}
  labels:
    {{- include "cleave.labels" .root | nindent 4 }}
spec:
  {{- with .resource }}
  extendedResourceName: {{ . }}
  {{- end }}
  selectors:
    - cel:
        expression: device.driver == "{{ include "cleave.driver" .root }}" && {{ .expression }}
{{- end -}}

{{/*
The end of a condition of CEL for extended resources of GPUs: those whose names are the values' own, not NVIDIA's. A list with root and the
variable of the resource.
*/}}
{{- define "cleave.orOwnResource" -}}
{{- $root := index . 0 -}}
{{- $variable := index . 1 -}}
{{- $nvidias := "^nvidia[.]com/(gpu|mig-)" -}}
{{- range $class := $root.Values.deviceClasses -}}
{{- with $class.extendedResourceName }}{{ if not (regexMatch $nvidias .) }} || {{ $variable }} == {{ quote . }}{{ end }}{{ end -}}
{{- with $class.extendedResourcePrefix }}{{ if not (regexMatch $nvidias .) }} || {{ $variable }}.startsWith({{ quote . }}){{ end }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The names of all DeviceClasses of the release, separated by spaces. */}}
{{- define "cleave.classNames" -}}
{{- $classes := .Values.deviceClasses -}}
{{- $names := list -}}
{{- range $key, $name := dict "gpu" "gpu" "mig" "mig" "timeSlice" "timeslice" "mps" "mps" "migTimeSlice" "mig-timeslice" "migMPS" "mig-mps" -}}
{{- if (index $classes $key).enabled }}{{ $names = append $names (printf "%s.cleave.dev" $name) }}{{ end -}}
{{- end -}}
{{- with $classes.migProfiles }}{{ if .enabled }}
{{- $settings := . -}}
{{- range $.Files.Get "files/mig-profiles.yaml" | fromYamlArray }}
{{- $wanted := not $settings.boards -}}
{{- $entry := . -}}
{{- range $settings.boards }}{{ if has . $entry.boards }}{{ $wanted = true }}{{ end }}{{ end -}}
{{- if and $wanted (not (has .profile $settings.disabled)) }}{{ $names = append $names (printf "mig-%s.cleave.dev" (replace "+" "." .profile)) }}{{ end -}}
{{- end -}}
{{- end }}{{ end -}}
{{- if .Values.nvidiaCompatible -}}
{{- if (ternary $classes.timeSlice $classes.gpu .Values.nvidiaConsumableShares).enabled }}{{ $names = append $names "gpu.nvidia.com" }}{{ end -}}
{{- if $classes.mig.enabled }}{{ $names = append $names "mig.nvidia.com" }}{{ end -}}
{{- end -}}
{{ join " " $names }}
{{- end -}}
