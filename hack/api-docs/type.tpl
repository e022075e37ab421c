{{- define "type" -}}
{{- if markdownShouldRenderType . }}
## {{ .Name }}

{{ .Doc }}
{{- if .EnumValues }}

| value | meaning |
| --- | --- |
{{- range .EnumValues }}
| `{{ .Name }}` | {{ template "cell" regexReplaceAll "^\\w+ (means that |is )?" .Doc "" }} |
{{- end }}
{{- else if .Members }}

| field | meaning |
| --- | --- |
{{- range .Members }}
| `{{ .Name }}`<br>{{ markdownRenderType .Type }} | {{ template "cell" .Doc }}{{ template "rules" . }} |
{{- end }}
{{- end }}
{{ end }}
{{- end -}}

{{/* cell is a comment in one line: list items and paragraphs begin with a break. */}}
{{- define "cell" -}}
{{- $lines := regexReplaceAll "\n( *)- " (trim .) "<br>• " -}}
{{- regexReplaceAll "\\s*\n\\s*" $lines " " | replace "|" "\\|" | replace "<name>" "&lt;name&gt;" -}}
{{- end -}}

{{/* rules are what the schema demands of a field. */}}
{{- define "rules" -}}
{{- $rules := list -}}
{{- if has "Required: {}" .Validation }}{{ $rules = append $rules "required" }}{{ end -}}
{{- if .Default }}{{ $rules = append $rules (printf "default `%s`" .Default) }}{{ end -}}
{{- range .Validation -}}
{{- $value := regexReplaceAll "^[^:]*: " . "" -}}
{{- if hasPrefix "Minimum:" . }}{{ $rules = append $rules (printf "at least %s" $value) }}{{ end -}}
{{- if hasPrefix "Maximum:" . }}{{ $rules = append $rules (printf "at most %s" $value) }}{{ end -}}
{{- if hasPrefix "MaxLength:" . }}{{ $rules = append $rules (printf "at most %s characters" $value) }}{{ end -}}
{{- if hasPrefix "MaxItems:" . }}{{ $rules = append $rules (printf "at most %s items" $value) }}{{ end -}}
{{- if hasPrefix "Pattern:" . }}{{ $rules = append $rules (printf "matches %s" $value) }}{{ end -}}
{{- end -}}
{{- if $rules }}<br>_{{ join "; " $rules | replace "|" "\\|" }}_{{ end -}}
{{- end -}}
