// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"flag"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/test/assert"
)

var update = flag.Bool("update", false, "update the golden file")

// TestRBAC checks that the kustomizations, and the component for driver pod, give exactly the reviewed
// rights. config/ is rendered from the chart.
func TestRBAC(t *testing.T) {
	checkRights(t, "testdata/rbac.yaml", "config/default", map[string]string{
		"config/default": permissionsOf(t, renderKustomization(t, "default")), "config/static-pod": permissionsOf(t, renderKustomization(t, "static-pod")),
	})
	pods := renderComponent(t, "pod")
	checkRights(t, "testdata/pods.yaml", "config/pod", map[string]string{"config/pod": addedRights(t, renderChart(t), pods)})
	checkRights(t, "testdata/pod-streams.yaml", "config/pod-streams", map[string]string{
		"config/pod-streams": addedRights(t, pods, renderComponent(t, "pod-streams")),
		"the chart":          addedRights(t, renderChart(t, podValues...), renderChart(t, podStreamsValues...)),
	})
}

// checkRights checks that all installations give the rights of a golden file. With -update it first writes
// the rights of the installation updatedBy to the file.
func checkRights(t *testing.T, goldenFile, updatedBy string, rights map[string]string) {
	t.Helper()
	if *update {
		assert.NoError(t, os.WriteFile(goldenFile, []byte(rights[updatedBy]), 0o644))
	}
	text, err := os.ReadFile(goldenFile)
	assert.NoError(t, err)
	for name, got := range rights {
		assert.True(t, got == string(text),
			"%s gives other rights than %s; go test ./test/manifests -run %s -update writes those of %s.\ngot:\n%s", name, goldenFile, t.Name(), updatedBy, got)
	}
}

// TestChartBindsSecretNamespaces checks that the value adds a RoleBinding in each namespace and
// changes nothing else.
func TestChartBindsSecretNamespaces(t *testing.T) {
	plain := permissionsOf(t, renderChart(t))
	bound := permissionsOf(t, renderChart(t, "--set", "secretNamespaces={blue,green}"))
	for _, ns := range []string{"blue", "green"} {
		want := "kind: RoleBinding\nmetadata:\n  name: drover-secrets-reader\n  namespace: " + ns + "\n" +
			"roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: ClusterRole\n  name: drover-secrets-reader\n" +
			"subjects:\n- kind: ServiceAccount\n  name: drover-controller\n  namespace: " + namespace + "\n"
		before, after, ok := strings.Cut(bound, "---\napiVersion: rbac.authorization.k8s.io/v1\n"+want)
		assert.Require(t, ok, "no RoleBinding in %s:\n%s", ns, bound)
		bound = before + after
	}
	assert.Equal(t, "more has changed:\n", bound, plain)
}

// TestComponentFlags checks that a component of config/, which sets environment variables, gives the
// controller the same flags as the chart.
func TestComponentFlags(t *testing.T) {
	t.Parallel()
	for component, tc := range map[string]struct {
		values   []string
		defaults []string // flags that the chart sets to their defaults
	}{
		"streams": {[]string{"--set", "streams.enabled=true,streams.certSecret=drover-streams-tls"}, nil},
		"pod":     {podValues, []string{"--pod-access-mode=ReadWriteOncePod", "--pod-kvm-resource=devices.kubevirt.io/kvm"}},
		"pod-streams": {
			append([]string{"--set", "streams.certSecret=drover-streams-tls"}, podStreamsValues...),
			[]string{"--pod-access-mode=ReadWriteOncePod", "--pod-kvm-resource=devices.kubevirt.io/kvm"},
		},
	} {
		ours := append(flagsOf(t, renderComponent(t, component)), tc.defaults...)
		theirs := flagsOf(t, renderChart(t, tc.values...))
		if slices.Sort(ours); !slices.Equal(ours, slices.Sorted(slices.Values(theirs))) {
			t.Errorf("config/%s sets the flags %q, and the chart %q", component, ours, theirs)
		}
	}
}

// TestChartWithoutAggregation checks that the roles still exist without aggregation, so that they can
// be bound, and that nothing else changes.
func TestChartWithoutAggregation(t *testing.T) {
	with := renderChart(t)
	labelled := 0
	for _, o := range with {
		before := len(o.GetLabels())
		keepLabels(o, func(key string) bool { return !isAggregation(key) })
		labelled += before - len(o.GetLabels())
	}
	assert.Equal(t, "labels add roles to others", labelled, 3)
	without := renderChart(t, "--set", "rbac.aggregateRoles=false")
	assert.True(t, equality.Semantic.DeepEqual(with, without), "rbac.aggregateRoles changes more than the labels of the three roles")
}

// isAggregation reports whether Kubernetes adds a ClusterRole with this label to another one.
func isAggregation(label string) bool {
	return strings.HasPrefix(label, "rbac.authorization.k8s.io/aggregate-to-")
}

func keepLabels(o *unstructured.Unstructured, keep func(string) bool) {
	labels := o.GetLabels()
	maps.DeleteFunc(labels, func(key, _ string) bool { return !keep(key) })
	if len(labels) == 0 {
		labels = nil
	}
	o.SetLabels(labels)
}

// permissionsOf returns all objects that grant permissions, sorted, and of their labels only those
// that add a role to another.
func permissionsOf(t *testing.T, all []*unstructured.Unstructured) string {
	t.Helper()
	kinds := []string{"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
	key := func(o *unstructured.Unstructured) string { return o.GetNamespace() + "/" + o.GetName() }
	var kept []*unstructured.Unstructured
	for _, o := range all {
		if slices.Contains(kinds, o.GetKind()) {
			o = o.DeepCopy()
			keepLabels(o, isAggregation)
			o.SetAnnotations(nil)
			kept = append(kept, o)
		}
	}
	slices.SortFunc(kept, func(a, b *unstructured.Unstructured) int {
		return cmp.Or(slices.Index(kinds, a.GetKind())-slices.Index(kinds, b.GetKind()), cmp.Compare(key(a), key(b)))
	})
	var docs []string
	for _, o := range kept {
		text, err := yaml.Marshal(o.Object)
		assert.NoError(t, err)
		docs = append(docs, string(text))
	}
	return strings.Join(docs, "---\n")
}
