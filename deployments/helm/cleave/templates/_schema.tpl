{{/*
Errors of a value by a schema as hack/gen-policyschema writes it: one line each. Takes a dict with schema, value, and at, the
path of the value. An empty value is absent, which is an error only in a list.
*/}}
{{- define "cleave.problems" -}}
{{- $s := .schema -}}{{- $v := .value -}}{{- $at := .at -}}
{{- $kind := "" -}}
{{- if kindIs "map" $v }}{{ $kind = "object" }}
{{- else if kindIs "slice" $v }}{{ $kind = "array" }}
{{- else if kindIs "bool" $v }}{{ $kind = "boolean" }}
{{- else if kindIs "string" $v }}{{ $kind = "string" }}
{{- else if not (kindIs "invalid" $v) }}{{ $kind = "number" }}
{{- if eq (floor $v) (float64 $v) }}{{ $kind = "integer" }}{{ end }}
{{- end -}}
{{- $types := $s.type | default list -}}
{{- if not $kind }}
{{ $at }}: is empty
{{- else if and $types (not (has $kind $types)) (not (and (eq $kind "integer") (has "number" $types))) }}
{{ $at }}: must be {{ join " or " $types }}, not {{ $kind }} {{ toJson $v }}
{{- else }}
{{- if and (hasKey $s "const") (ne (toString $v) $s.const) }}
{{ $at }}: must be {{ $s.const }}, not {{ toJson $v }}
{{- end }}
{{- if and $s.enum $v (not (has $v $s.enum)) }}
{{ $at }}: must be one of {{ join ", " $s.enum }}, not {{ toJson $v }}
{{- end }}
{{- if and $s.pattern (eq $kind "string") (not (regexMatch $s.pattern $v)) }}
{{ $at }}: must be {{ $s.description }}, not {{ toJson $v }}
{{- end }}
{{- if or (and (hasKey $s "minimum") (lt (float64 $v) (float64 $s.minimum))) (and (hasKey $s "maximum") (gt (float64 $v) (float64 $s.maximum))) }}
{{ $at }}: must be {{ $s.minimum }} {{ if hasKey $s "maximum" }}to {{ $s.maximum }}{{ else }}or more{{ end }}, not {{ toJson $v }}
{{- end }}
{{- if and $s.maxItems (gt (len $v) (int $s.maxItems)) }}
{{ $at }}: has {{ len $v }} entries, more than {{ $s.maxItems }}
{{- end }}
{{- if $s.items }}
{{- range $i, $item := $v }}
{{- include "cleave.problems" (dict "schema" $s.items "value" $item "at" (printf "%s[%d]" $at $i)) }}
{{- end }}
{{- end }}
{{- if eq $kind "object" }}
{{- range $s.required }}{{ if not (hasKey $v .) }}
{{ if $at }}{{ $at }}.{{ end }}{{ . }}: is not set
{{- end }}{{ end }}
{{- range $name, $inner := $v }}
{{- $below := ternary (printf "%s.%s" $at $name) $name (ne $at "") }}
{{- if hasKey ($s.properties | default dict) $name }}
{{- if not (kindIs "invalid" $inner) }}
{{- include "cleave.problems" (dict "schema" (index $s.properties $name) "value" $inner "at" $below) }}
{{- end }}
{{- else if kindIs "map" $s.additionalProperties }}
{{- include "cleave.problems" (dict "schema" $s.propertyNames "value" $name "at" $at) }}
{{- include "cleave.problems" (dict "schema" $s.additionalProperties "value" $inner "at" $below) }}
{{- else }}
{{ $below }}: unknown field: there are {{ keys $s.properties | sortAlpha | join ", " }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Errors of the policies in the values, one line each. A policy that is text may have several documents. Why not a hook:
docs/decisions/policy-schema.md.
*/}}
{{- define "cleave.policyProblems" -}}
{{- $schema := .Files.Get "files/nodepolicy.schema.json" | fromJson -}}
{{- range $name, $policy := .Values.policies }}
{{- /* Not in values.schema.json: Helm reports names of properties at the path of another value. */}}
{{- if or (eq $name "built-in") (gt (len $name) 63) (not (regexMatch "^[a-z0-9]([-a-z0-9]*[a-z0-9])?([.][a-z0-9]([-a-z0-9]*[a-z0-9])?)*$" $name)) }}
policies.{{ $name }}: must be named by lower case letters, digits, "-" and ".", at most 63, and not "built-in"
{{- end }}
{{- $documents := list $policy }}
{{- if kindIs "string" $policy }}
{{- $documents = list }}
{{- range regexSplit "(?m)^---[ \t]*$" $policy -1 }}
{{- if regexMatch "(?m)^[^#\\s]" . }}{{ $documents = append $documents (fromYaml .) }}{{ end }}
{{- end }}
{{- if not $documents }}
policies.{{ $name }}: there is no policy in the text
{{- end }}
{{- else }}
{{- $documents = list (merge (dict) $policy (dict "apiVersion" "gpu.cleave.dev/v1alpha1" "kind" "NodePolicy")) }}
{{- end }}
{{- range $documents }}
{{- if .Error }}
policies.{{ $name }}: {{ .Error }}
{{- else }}
{{- range splitList "\n" (include "cleave.problems" (dict "schema" $schema "value" . "at" "")) }}{{ if . }}
policies.{{ $name }}: {{ . }}
{{- end }}{{ end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
