{{- define "penstock.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "penstock.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "penstock.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "penstock.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- /* Labels of the object of a component: (list $ "agent") */ -}}
{{- define "penstock.labels" -}}
{{- $root := index . 0 -}}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{ include "penstock.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
{{- with $root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "penstock.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: {{ include "penstock.name" $root }}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "penstock.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Fields that every pod has */ -}}
{{- define "penstock.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.hostAliases }}
hostAliases:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* Security of a container that satisfies the pod security level "restricted" */ -}}
{{- define "penstock.restricted" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- /* Probes of a daemon whose HTTPS port is called "http" */ -}}
{{- define "penstock.probes" -}}
startupProbe:
  httpGet: { path: /healthz, port: http, scheme: HTTPS }
  periodSeconds: 2
  failureThreshold: 60
livenessProbe:
  httpGet: { path: /healthz, port: http, scheme: HTTPS }
  periodSeconds: 20
  timeoutSeconds: 5
  failureThreshold: 6
readinessProbe:
  httpGet: { path: /readyz, port: http, scheme: HTTPS }
  periodSeconds: 5
  timeoutSeconds: 5
{{- end -}}

{{- /* Tokens and certificates of this release: existing ones, else new ones. Kept in .Values, so that all templates of a
       rendering see the same. */ -}}
{{- define "penstock.generate" -}}
{{- if not (hasKey .Values "generated") -}}
{{- $full := include "penstock.fullname" . -}}
{{- $tokens := dict -}}
{{- $old := (lookup "v1" "Secret" .Release.Namespace (printf "%s-tokens" $full)).data | default dict -}}
{{- $names := list "operator" -}}
{{- range .Values.agents.hosts -}}
{{- $names = append $names .name -}}
{{- end -}}
{{- range $names -}}
{{- $_ := set $tokens . (get $old . | default (randAlphaNum 48 | b64enc)) -}}
{{- end -}}
{{- $generated := dict "tokens" $tokens -}}
{{- range $part := list "controller" "collector" -}}
{{- $name := printf "%s-%s" $full $part -}}
{{- $old := (lookup "v1" "Secret" $.Release.Namespace (printf "%s-tls" $name)).data | default dict -}}
{{- $certificate := "" -}}
{{- if hasKey $old "tls.crt" -}}
{{- $certificate = b64dec (get $old "tls.crt") -}}
{{- $_ := set $generated $part (dict "crt" (get $old "tls.crt") "key" (get $old "tls.key")) -}}
{{- else -}}
{{- $names := list $name (printf "%s.%s" $name $.Release.Namespace) (printf "%s.%s.svc" $name $.Release.Namespace) -}}
{{- $made := genSelfSignedCertWithKey $name nil $names 36500 (genPrivateKey "ecdsa") -}}
{{- $certificate = $made.Cert -}}
{{- $_ := set $generated $part (dict "crt" (b64enc $made.Cert) "key" (b64enc $made.Key)) -}}
{{- end -}}
{{- $der := regexReplaceAll "-----[A-Z ]+-----|\\s" $certificate "" | b64dec -}}
{{- $_ := set (get $generated $part) "fingerprint" (printf "SHA256:%s" (sha256sum $der)) -}}
{{- end -}}
{{- $_ := set .Values "generated" $generated -}}
{{- end -}}
{{- end -}}

{{- /* Name of the Secret with tokens */ -}}
{{- define "penstock.tokensSecret" -}}
{{- .Values.secrets.tokens | default (printf "%s-tokens" (include "penstock.fullname" .)) -}}
{{- end -}}

{{- /* Name of the Secret with the certificate of a part: (list $ "controller") */ -}}
{{- define "penstock.tlsSecret" -}}
{{- $root := index . 0 -}}
{{- (get $root.Values.secrets (index . 1)).tls | default (printf "%s-%s-tls" (include "penstock.fullname" $root) (index . 1)) -}}
{{- end -}}

{{- /* Lines of TOML by which a client knows the certificate of a part; authorities is a mounted file */ -}}
{{- define "penstock.trust" -}}
{{- $root := index . 0 -}}
{{- $part := index . 1 -}}
{{- $secret := get $root.Values.secrets $part -}}
{{- if $secret.fingerprint -}}
fingerprint = {{ $secret.fingerprint | quote }}
{{- else if $secret.tls -}}
authorities = "/etc/penstock/{{ $part }}-ca.crt"
{{- else -}}
{{- include "penstock.generate" $root -}}
fingerprint = {{ (get $root.Values.generated $part).fingerprint | quote }}
{{- end -}}
{{- end -}}

{{- /* "true" where clients check a part by the ca.crt of its Secret */ -}}
{{- define "penstock.hasAuthorities" -}}
{{- $secret := get (index . 0).Values.secrets (index . 1) -}}
{{- if and $secret.tls (not $secret.fingerprint) -}}true{{- end -}}
{{- end -}}

{{- define "penstock.controllerUrl" -}}
{{- if .Values.agents.controller.url -}}
{{ .Values.agents.controller.url }}
{{- else if .Values.controller.enabled -}}
https://{{ include "penstock.fullname" . }}-controller.{{ .Release.Namespace }}.svc:{{ .Values.controller.port }}
{{- end -}}
{{- end -}}

{{- /* Values that contradict each other */ -}}
{{- define "penstock.check" -}}
{{- if and .Values.controller.enabled (gt (int .Values.controller.replicas) 1) (not .Values.controller.database.url) -}}
{{- fail "controller.replicas: more than one need controller.database.url (PostgreSQL)" -}}
{{- end -}}
{{- if .Values.agents.enabled -}}
{{- if not .Values.agents.hosts -}}
{{- fail "agents.hosts is empty: name each host with its site and, for a DaemonSet, its node; or set agents.enabled=false" -}}
{{- end -}}
{{- range .Values.agents.hosts -}}
{{- if and (eq $.Values.agents.kind "DaemonSet") (not .node) -}}
{{- fail (printf "agents.hosts: %s needs node, the name of its node" .name) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.agents.kind "DaemonSet") (eq .Values.agents.state.kind "claim") -}}
{{- fail "agents.state.kind: claim needs agents.kind StatefulSet" -}}
{{- end -}}
{{- range .Values.agents.exports -}}
{{- if not (or (and .hostPath (not .claim)) (and .claim (not .hostPath))) -}}
{{- fail (printf "agents.exports: %s needs one of hostPath and claim" .name) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.agents.tune.enabled (ne .Values.agents.network "host") -}}
{{- fail "agents.tune needs agents.network host: a pod's network has settings of its own" -}}
{{- end -}}
{{- end -}}
{{- if and .Values.marker.enabled (not .Values.marker.tags) -}}
{{- fail "marker.tags is empty: give the rules of the marker, see docs/scitags.md" -}}
{{- end -}}
{{- end -}}

{{- /* Name under which the pod of a host finds its files: that of its node or of itself. (list $ index host) */ -}}
{{- define "penstock.hostKey" -}}
{{- $root := index . 0 -}}
{{- if eq $root.Values.agents.kind "DaemonSet" -}}
{{ (index . 2).node }}
{{- else -}}
{{ include "penstock.fullname" $root }}-agent-{{ index . 1 }}
{{- end -}}
{{- end -}}

{{- /* Nodes of the hosts, as terms of a node affinity */ -}}
{{- define "penstock.nodeTerms" -}}
{{- range $index, $host := .Values.agents.hosts -}}
{{- if $index }}
{{ end -}}
- matchFields:
    - { key: metadata.name, operator: In, values: [{{ $host.node | quote }}] }
{{- end -}}
{{- end -}}
