// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"cmp"
	"flag"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/test/assert"
)

var update = flag.Bool("update", false, "update the golden file")

// TestRBAC checks that the kustomizations and the chart give the same rights, and
// that these are the reviewed ones.
func TestRBAC(t *testing.T) {
	checkRights(t, "testdata/rbac.yaml", "config/default", map[string]string{
		"config/default":    permissionsOf(t, renderKustomization(t, "default")),
		"config/static-pod": permissionsOf(t, renderKustomization(t, "static-pod")),
		"charts/drover":     permissionsOf(t, renderChart(t)),
	})
}

// checkRights checks that all have the rights that a golden file has. With -update it writes those of
// one of them first.
func checkRights(t *testing.T, goldenFile, updatedBy string, rights map[string]string) {
	t.Helper()
	if *update {
		assert.NoError(t, os.WriteFile(goldenFile, []byte(rights[updatedBy]), 0o644))
	}
	text, err := os.ReadFile(goldenFile)
	assert.NoError(t, err)
	for name, got := range rights {
		if got != string(text) {
			t.Errorf("%s gives other rights than %s; go test ./test/manifests -run %s -update writes those of %s.\ngot:\n%s",
				name, goldenFile, t.Name(), updatedBy, got)
		}
	}
}

// TestChartBindsSecretNamespaces checks that the chart adds a RoleBinding in each
// namespace and changes nothing else.
func TestChartBindsSecretNamespaces(t *testing.T) {
	plain := permissionsOf(t, renderChart(t))
	bound := permissionsOf(t, renderChart(t, "--set", "secretNamespaces={blue,green}"))
	for _, ns := range []string{"blue", "green"} {
		want := "kind: RoleBinding\nmetadata:\n  name: drover-secrets-reader\n  namespace: " + ns + "\n" +
			"roleRef:\n  apiGroup: rbac.authorization.k8s.io\n  kind: ClusterRole\n  name: drover-secrets-reader\n" +
			"subjects:\n- kind: ServiceAccount\n  name: drover-controller\n  namespace: " + namespace + "\n"
		before, after, ok := strings.Cut(bound, "---\napiVersion: rbac.authorization.k8s.io/v1\n"+want)
		if !ok {
			t.Fatalf("no RoleBinding in %s:\n%s", ns, bound)
		}
		bound = before + after
	}
	if bound != plain {
		t.Errorf("more has changed:\n%s", bound)
	}
}

// TestChartPodEqualsKustomizePod checks that the chart has the same pod and the same CRD as
// config/default.
func TestChartPodEqualsKustomizePod(t *testing.T) {
	fromConfig, fromChart := renderKustomization(t, "default"), renderChart(t)
	a, b := findObject(t, fromConfig, "Deployment"), findObject(t, fromChart, "Deployment")
	pod := []string{"spec", "template", "spec"}
	for _, path := range [][]string{
		{"spec", "replicas"},
		{"spec", "selector"},
		{"spec", "template", "metadata"},
		append(pod, "affinity"), append(pod, "securityContext"), append(pod, "serviceAccountName"),
	} {
		assertSameRules(t, strings.Join(path, "."), fieldAt(t, a, path...), fieldAt(t, b, path...))
	}
	for _, field := range []string{"args", "image", "livenessProbe", "readinessProbe", "ports", "resources", "securityContext"} {
		assertSameRules(t, field, controllerContainer(t, a)[field], controllerContainer(t, b)[field])
	}
	for _, kind := range []string{"CustomResourceDefinition", "NetworkPolicy", "PodDisruptionBudget", "Service"} {
		assertSameRules(t, kind, fieldAt(t, findObject(t, fromConfig, kind), "spec"), fieldAt(t, findObject(t, fromChart, kind), "spec"))
	}
}

// TestChartHasTheObjectsOfKustomize checks that both install the same objects. Helm creates
// the namespace itself.
func TestChartHasTheObjectsOfKustomize(t *testing.T) {
	names := func(all []*unstructured.Unstructured) []string {
		var names []string
		for _, o := range all {
			if o.GetKind() != "Namespace" {
				names = append(names, strings.Join([]string{o.GetAPIVersion(), o.GetKind(), o.GetNamespace(), o.GetName()}, " "))
			}
		}
		slices.Sort(names)
		return names
	}
	fromConfig, fromChart := names(renderKustomization(t, "default")), names(renderChart(t))
	if len(fromConfig) < 10 || !slices.Equal(fromConfig, fromChart) {
		t.Errorf("config/default:\n%s\ncharts/drover:\n%s", strings.Join(fromConfig, "\n"), strings.Join(fromChart, "\n"))
	}
}

// TestChartWithoutAggregation checks that the roles stay, so that they can be bound, and
// that nothing else changes.
func TestChartWithoutAggregation(t *testing.T) {
	with := renderChart(t)
	labelled := 0
	for _, o := range with {
		before := len(o.GetLabels())
		keepLabels(o, func(key string) bool { return !isAggregation(key) })
		labelled += before - len(o.GetLabels())
	}
	if labelled != 3 {
		t.Errorf("%d labels add roles to others, want 3", labelled)
	}
	without := renderChart(t, "--set", "rbac.aggregateRoles=false")
	if !equality.Semantic.DeepEqual(with, without) {
		t.Error("rbac.aggregateRoles changes more than the labels of the three roles")
	}
}

// isAggregation reports whether Kubernetes adds a ClusterRole to another by this label.
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

func assertSameRules(t *testing.T, what string, a, b any) {
	t.Helper()
	if a == nil || !reflect.DeepEqual(a, b) {
		t.Errorf("%s of config/default:\n%v\nof charts/drover:\n%v", what, a, b)
	}
}

// permissionsOf returns all objects that grant permissions, in one order and without
// labels other than those that add a role to another.
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
