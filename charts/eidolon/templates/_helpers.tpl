{{/*
Values are read as (.Values.part).field: a part that is null (helm upgrade --reuse-values over an older release, or
--set part=null) then reads as unset in place of ending the rendering with a nil pointer.
*/}}

{{- define "eidolon.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- define "eidolon.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- $name := include "eidolon.name" . -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "eidolon.operator" -}}
{{- include "eidolon.fullname" . }}-operator
{{- end -}}

{{- define "eidolon.serviceAccount" -}}
{{- $default := ternary (include "eidolon.operator" .) "default" (ne (toString (.Values.serviceAccount).create) "false") -}}
{{- default $default (.Values.serviceAccount).name -}}
{{- end -}}

{{/* Labels by which the operator's pod is selected; they never change. */}}
{{- define "eidolon.selector" -}}
app.kubernetes.io/name: eidolon
app.kubernetes.io/component: operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of every object. */}}
{{- define "eidolon.labels" -}}
{{- $own := dict
    "app.kubernetes.io/name" "eidolon"
    "app.kubernetes.io/component" "operator"
    "app.kubernetes.io/instance" .Release.Name
    "app.kubernetes.io/version" .Chart.AppVersion
    "app.kubernetes.io/managed-by" .Release.Service
    "helm.sh/chart" (printf "%s-%s" .Chart.Name (.Chart.Version | replace "+" "_"))
-}}
{{- toYaml (merge $own (default dict .Values.commonLabels)) -}}
{{- end -}}

{{/* Full reference of one image: include "eidolon.image" (list . "core"). */}}
{{- define "eidolon.image" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $all := default dict $root.Values.image -}}
{{- $one := default dict (get $all $part) -}}
{{- $repository := default (printf "eidolon-%s" $part) $one.repository -}}
{{- $name := printf "%s/%s" (default "ghcr.io/eidolon-sim" $all.registry | trimSuffix "/") $repository -}}
{{- if $one.digest -}}
{{- printf "%s@%s" $name $one.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (toString (coalesce $one.tag $all.tag $root.Chart.AppVersion)) -}}
{{- end -}}
{{- end -}}

{{- define "eidolon.clusterWide" -}}
{{- if ne (default "cluster" (.Values.watch).scope) "namespaces" -}}true{{- end -}}
{{- end -}}

{{/* The watched namespaces with scope namespaces, comma-separated; empty with scope cluster. */}}
{{- define "eidolon.namespaces" -}}
{{- if not (include "eidolon.clusterWide" .) -}}
{{- concat (list .Release.Namespace) (default list (.Values.watch).namespaces) | uniq | sortAlpha | join "," -}}
{{- end -}}
{{- end -}}

{{/* What the operator may do in a namespace that it watches; docs/security.md says what each right is for. */}}
{{- define "eidolon.rules" -}}
- apiGroups: [eidolon.dev] # delete: ttlSecondsAfterFinished
  resources: [simulatedclusters]
  verbs: [get, list, watch, delete]
- apiGroups: [eidolon.dev]
  resources: [simulatedclusters/status]
  verbs: [patch]
- apiGroups: [eidolon.dev] # owner references with blockOwnerDeletion ask for it where that is enforced
  resources: [simulatedclusters/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch]
- apiGroups: [""] # by name only: it cannot list the secrets of a namespace
  resources: [secrets]
  verbs: [get, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create]
{{- end -}}

{{- define "eidolon.scrapes" -}}
{{- $monitor := default dict . -}}
{{- range $port := ternary (list "http") (list "http" "dcgm") (eq (toString $monitor.dcgm) "false") }}
- port: {{ $port }}
  path: /metrics
  interval: {{ default "5s" $monitor.interval }}
  scrapeTimeout: {{ default "4s" $monitor.scrapeTimeout }}
  honorLabels: true # the emulated servers' own pod and namespace are meant, not those of the core
{{- end }}
{{- end -}}
