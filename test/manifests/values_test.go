// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
	"cloudnative.tw/drover/test/tier"
)

// allValues sets every value of the chart. Its PodMonitor requires the CRD of PodMonitors.
const (
	allValues     = "testdata/values.yaml"
	podMonitorCRD = "testdata/podmonitor-crd.yaml"
)

// chartValue is a value of the chart in values.yaml. An object whose members the schema does
// not define is one value.
type chartValue struct {
	path        []string
	node        *yaml.Node
	description string
}

func (v chartValue) name() string { return strings.Join(v.path, ".") }

// compact returns the value as JSON.
func (v chartValue) compact(t *testing.T) string {
	t.Helper()
	var value any
	assert.NoError(t, v.node.Decode(&value))
	return marshal(t, value)
}

func marshal(t *testing.T, value any) string {
	t.Helper()
	text, err := json.Marshal(value)
	assert.NoError(t, err)
	return string(text)
}

type valuesSchema struct {
	Type                 string                   `json:"type"`
	Properties           map[string]*valuesSchema `json:"properties"`
	AdditionalProperties any                      `json:"additionalProperties"`
}

// chartValues returns the values of values.yaml in their order, and checks that the schema has
// the same values.
func chartValues(t *testing.T) []chartValue {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(chart, "values.schema.json"))
	assert.NoError(t, err)
	schema := &valuesSchema{}
	assert.NoError(t, json.Unmarshal(text, schema))
	delete(schema.Properties, "global") // Helm's values for charts that include this one
	return collectValues(t, schema, readYAML(t, filepath.Join(chart, "values.yaml")), nil)
}

func readYAML(t *testing.T, path string) *yaml.Node {
	t.Helper()
	text, err := os.ReadFile(path)
	assert.NoError(t, err)
	var document yaml.Node
	assert.NoError(t, yaml.Unmarshal(text, &document))
	return document.Content[0]
}

func collectValues(t *testing.T, schema *valuesSchema, object *yaml.Node, path []string) []chartValue {
	t.Helper()
	assert.True(t, schema.AdditionalProperties == false, "the schema allows any value below %q", strings.Join(path, "."))
	unused := maps.Clone(schema.Properties)
	var all []chartValue
	for i := 0; i < len(object.Content); i += 2 {
		key, value := object.Content[i], object.Content[i+1]
		v := chartValue{path: append(slices.Clone(path), key.Value), node: value, description: commentText(key.HeadComment)}
		property := schema.Properties[key.Value]
		delete(unused, key.Value)
		switch {
		case property == nil:
			t.Errorf("the schema has no %s", v.name())
		case property.Properties != nil:
			all = append(all, collectValues(t, property, value, v.path)...)
		default:
			all = append(all, v)
		}
	}
	for name := range unused {
		t.Errorf("values.yaml has no %s", strings.Join(append(slices.Clone(path), name), "."))
	}
	return all
}

// commentText returns the last paragraph of a comment as one line.
func commentText(comment string) string {
	paragraphs := strings.Split(comment, "\n\n")
	var words []string
	for line := range strings.Lines(paragraphs[len(paragraphs)-1]) {
		words = append(words, strings.TrimPrefix(strings.TrimSpace(line), "# "))
	}
	return strings.Join(words, " ")
}

// TestChartReadme checks that the table of values in the chart's README is generated from
// values.yaml.
func TestChartReadme(t *testing.T) {
	const begin = "TestChartReadme -update -->\n"
	path := filepath.Join(chart, "README.md")
	text, err := os.ReadFile(path)
	assert.NoError(t, err)
	before, after, ok := strings.Cut(string(text), begin)
	assert.Require(t, ok, "%s lacks a line that ends with %q", path, begin)
	want := "\n" + valuesTable(t)
	if *update {
		assert.NoError(t, os.WriteFile(path, []byte(before+begin+want), 0o644))
	} else if after != want {
		t.Errorf("the table in %s differs from values.yaml: go test ./test/manifests -run TestChartReadme -update", path)
	}
}

func valuesTable(t *testing.T) string {
	t.Helper()
	var table strings.Builder
	table.WriteString("| value | default | |\n| --- | --- | --- |\n")
	for _, v := range chartValues(t) {
		assert.True(t, v.description != "", "values.yaml lacks a comment for %s", v.name())
		shown := "`" + v.compact(t) + "`"
		if len(shown) > 60 {
			shown = "[values.yaml](values.yaml)"
		}
		fmt.Fprintf(&table, "| `%s` | %s | %s |\n", v.name(), shown, strings.ReplaceAll(v.description, "|", `\|`))
	}
	return table.String()
}

// TestChartValuesAreRead checks that a template reads each value.
func TestChartValuesAreRead(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	assert.Require(t, err == nil && len(paths) != 0, "there are no templates: %v", err)
	var templates []byte
	for _, path := range paths {
		text, err := os.ReadFile(path)
		assert.NoError(t, err)
		templates = append(templates, text...)
	}
	for _, v := range chartValues(t) {
		assert.True(t, regexp.MustCompile(`\.`+v.path[len(v.path)-1]+`\b`).Match(templates), "no template reads %s", v.name())
	}
}

// TestChartValues checks that each value changes the installed objects: either set alone, or
// unset while all others are set. A value may be an error without another one.
func TestChartValues(t *testing.T) {
	tier.Full(t, "it renders the chart a hundred times; TestChartValuesAreRead looks for each value in the templates")
	t.Parallel()
	var set map[string]any
	assert.NoError(t, readYAML(t, allValues).Decode(&set))
	render := func(t *testing.T, args ...string) string {
		stdout, stderr, err := framework.TryHelm(t, os.DevNull, append([]string{"template", "drover", chart}, args...)...)
		if err != nil {
			return stderr
		}
		return stdout
	}
	renderChart(t, "--values", allValues) // no error
	plain, all := render(t), render(t, "--values", allValues)
	for _, v := range chartValues(t) {
		t.Run(v.name(), func(t *testing.T) {
			given, found, err := unstructured.NestedFieldNoCopy(set, v.path...)
			assert.Require(t, err == nil && found, "%s does not set the value", allValues)
			other := marshal(t, given)
			if other == v.compact(t) {
				other = map[string]string{"true": "false", "false": "true"}[other]
				assert.Require(t, other != "", "%s sets the default", allValues)
			}
			arg := "--set-json=" + v.name() + "="
			assert.True(t, render(t, arg+other) != plain || render(t, "--values", allValues, arg+v.compact(t)) != all, "%s has no effect", other)
		})
	}
}

// refusedValues are wrong values, and texts of the errors.
var refusedValues = map[string]struct {
	value string
	want  []string
}{
	"an unknown value":          {`resource={}`, []string{"additional properties 'resource' not allowed"}},
	"an unknown value below":    {`image={"tags":"v1"}`, []string{"at '/image'", "additional properties 'tags' not allowed"}},
	"a deep unknown value":      {`metrics={"podMonitor":{"enable":true}}`, []string{"at '/metrics/podMonitor'", "'enable' not allowed"}},
	"text for a switch":         {`rbac.aggregateRoles="no"`, []string{"at '/rbac/aggregateRoles'", "got string, want boolean"}},
	"a pull policy":             {`image.pullPolicy="Sometimes"`, []string{"at '/image/pullPolicy'", "must be one of 'Always', 'IfNotPresent', 'Never'"}},
	"a digest that is a tag":    {`image.digest="v1"`, []string{"at '/image/digest'", "'v1' does not match pattern", "sha256"}},
	"a digest that is cut":      {`image.digest="sha256:0123"`, []string{"at '/image/digest'"}},
	"a number for an interval":  {`metrics.podMonitor.interval=30`, []string{"at '/metrics/podMonitor/interval'", "want string"}},
	"an interval without unit":  {`metrics.podMonitor.interval="30"`, []string{"at '/metrics/podMonitor/interval'"}},
	"a pull secret without key": {`imagePullSecrets=["registry"]`, []string{"at '/imagePullSecrets/0'", "want object"}},
	"a label that is a number":  {`podLabels={"team":1}`, []string{"at '/podLabels/team'", "want string"}},
	"an account without name":   {`serviceAccount.create=false`, []string{"serviceAccount.name is required if serviceAccount.create is false"}},
	"a label of the selector": {`podLabels={"app.kubernetes.io/name":"mine"}`, []string{
		"podLabels has app.kubernetes.io/name: allowed are labels other than", "app.kubernetes.io/component and app.kubernetes.io/name",
	}},
	"streams without a Secret": {`streams.enabled=true`, []string{"streams.certSecret is required if streams.enabled is true"}},
	"a URL by HTTP":            {`streams.url="http://drover.example"`, []string{"at '/streams/url'", "does not match pattern"}},
	"a URL with a path":        {`streams.url="https://drover.example/x"`, []string{"at '/streams/url'"}},
	"an access mode":           {`pod.accessMode="ReadOnlyMany"`, []string{"at '/pod/accessMode'", "must be one of 'ReadWriteOncePod', 'ReadWriteOnce', 'ReadWriteMany'"}},
	"a disk from a file":       {`pod.image="/disk"`, []string{"at '/pod/image'", "does not match pattern"}},
	"values of an older chart": {`podSecurityContext=null`, []string{"there is no value podSecurityContext", "--reset-then-reuse-values"}},
}

// TestChartRefuses checks that wrong values are errors that name the value and say what
// is allowed.
func TestChartRefuses(t *testing.T) {
	t.Parallel()
	for name, tc := range refusedValues {
		t.Run(name, func(t *testing.T) {
			stdout, stderr, err := framework.TryHelm(t, os.DevNull, "template", "drover", chart, "--set-json", tc.value)
			assert.Require(t, err != nil, "it is accepted:\n%s", stdout)
			for _, want := range tc.want {
				assert.Contains(t, fmt.Sprintf("the error has no %q:\n", want), stderr, want)
			}
		})
	}
}

// TestChartFields checks what some values are for.
func TestChartFields(t *testing.T) {
	t.Parallel()
	const (
		digest  = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
		streams = "streams.enabled=true,streams.certSecret=x,streams.service.type="
		policy  = "Service drover-streams spec externalTrafficPolicy"
		pod     = "Deployment drover-controller spec template spec "
		labels  = "Deployment drover-controller spec template metadata "
	)
	for name, tc := range map[string]struct {
		set  string
		path string // kind and name of the object, and the field
		want any
	}{
		"a digest takes the tag's place": {"image.tag=v1,image.digest=" + digest, "", "drover-controller@" + digest},
		"a tag":                          {"image.tag=v1", "", "drover-controller:v1"},
		"no affinity":                    {"affinity.podAntiAffinity=null", pod + "affinity", nil},
		"labels":                         {"podLabels.team=a", labels + "labels team", "a"},
		"an annotation that is replaced": {
			`podAnnotations.kubectl\.kubernetes\.io/default-container=sidecar`, labels + "annotations kubectl.kubernetes.io/default-container", "sidecar",
		},
		"a field of the security context that is left out": {"podSecurityContext.runAsUser=null", pod + "securityContext runAsUser", nil},
		"the rest of the security context":                 {"podSecurityContext.runAsUser=null", pod + "securityContext runAsNonRoot", true},
		// A Service for users outside the cluster keeps their addresses, whose failures are counted.
		"a load balancer": {streams + "LoadBalancer", policy, "Local"},
		"a node port":     {streams + "NodePort", policy, "Local"},
		"a cluster IP":    {streams + "ClusterIP", policy, nil},
	} {
		t.Run(name, func(t *testing.T) {
			all := renderChart(t, "--set", tc.set)
			if tc.path == "" {
				got := controllerContainer(t, findObject(t, all, "Deployment"))["image"]
				assert.True(t, got == tc.want, "the image is %v, want %v", got, tc.want)
				return
			}
			path := strings.Fields(tc.path)
			got, _, err := unstructured.NestedFieldNoCopy(findObject(t, all, path[0], path[1]).Object, path[2:]...)
			assert.True(t, err == nil && equality.Semantic.DeepEqual(got, tc.want), "it is %v, want %v (error %v)", got, tc.want, err)
		})
	}
}

// TestChartAccount checks that rights and pods have the account that the values name.
func TestChartAccount(t *testing.T) {
	t.Parallel()
	all := renderChart(t, "--set", "serviceAccount.create=false,serviceAccount.name=mine,secretNamespaces={default}")
	subjects := 0
	for _, o := range all {
		assert.True(t, o.GetKind() != "ServiceAccount", "it creates ServiceAccount %s", o.GetName())
		list, _, _ := unstructured.NestedSlice(o.Object, "subjects")
		for _, s := range list {
			if s.(map[string]any)["kind"] == "Group" {
				continue // every user
			}
			subjects++
			got := s.(map[string]any)["name"]
			assert.True(t, got == "mine", "%s %s is for %v", o.GetKind(), o.GetName(), got)
		}
	}
	assert.Equal(t, "bindings", subjects, 6)
	got := fieldAt(t, findObject(t, all, "Deployment"), "spec", "template", "spec", "serviceAccountName")
	assert.True(t, got == "mine", "the pods have account %v", got)
}

// TestChartOnOlderKubernetes checks that such an API server knows each field of the CRD:
// otherwise Helm would stop.
func TestChartOnOlderKubernetes(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]bool{"1.29.15": false, "1.29.15-gke.100": false, "1.30.0": true, "1.36.3": true} {
		crd := findObject(t, renderChart(t, "--kube-version", version), "CustomResourceDefinition")
		versions, _ := fieldAt(t, crd, "spec", "versions").([]any)
		_, got := versions[0].(map[string]any)["selectableFields"]
		assert.True(t, got == want, "Kubernetes %s: the CRD has selectable fields: %v, want %v", version, got, want)
	}
}

// TestChartIcon checks that the icon, which Helm and Artifact Hub take as a URL, is
// icon.svg.
func TestChartIcon(t *testing.T) {
	svg, err := os.ReadFile(filepath.Join(chart, "icon.svg"))
	assert.NoError(t, err)
	path := filepath.Join(chart, "Chart.yaml")
	text, err := os.ReadFile(path)
	assert.NoError(t, err)
	before, rest, ok := strings.Cut(string(text), "\nicon: ")
	assert.Require(t, ok, "%s lacks an icon", path)
	got, after, _ := strings.Cut(rest, "\n")
	want := "data:image/svg+xml;base64," + base64.StdEncoding.EncodeToString(svg)
	if *update {
		assert.NoError(t, os.WriteFile(path, []byte(before+"\nicon: "+want+"\n"+after), 0o644))
	} else if got != want {
		t.Errorf("the icon in %s is not icon.svg: go test ./test/manifests -run TestChartIcon -update", path)
	}
}

// TestChartLint checks that helm lint has nothing to say.
func TestChartLint(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{nil, {"--values", allValues}} {
		stdout, stderr := framework.RunHelm(t, os.DevNull, append([]string{"lint", "--strict", chart}, args...)...)
		out := stdout + stderr
		assert.True(t, !strings.Contains(out, "["), "helm lint %v:\n%s", args, out)
	}
}
