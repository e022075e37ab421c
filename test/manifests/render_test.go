// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// repositoryRoot is the root of the checkout, relative to this folder.
const repositoryRoot = "../.."

// namespace is where Drover is installed.
const namespace = "drover-system"

// Paths of the chart and of the static pod.
var (
	chart     = filepath.Join(repositoryRoot, "charts", "drover")
	staticPod = filepath.Join(repositoryRoot, "config", "static-pod", "drover-controller.yaml")
)

func configPath(name string) string { return filepath.Join(repositoryRoot, "config", name) }

// renderKustomization renders a folder of config/.
func renderKustomization(t *testing.T, name string) []*unstructured.Unstructured {
	t.Helper()
	return render(t, []string{"kustomize", configPath(name)}, framework.RunKubectl)
}

// renderChart renders the chart.
func renderChart(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	return render(t, append([]string{"template", "drover", chart, "--namespace", namespace}, args...), framework.RunHelm)
}

// overlay returns the folder of a kustomization of config/default with a component of config/.
func overlay(component string) string { return filepath.Join("testdata", component) }

// renderComponent renders config/default alone if component is "default", else with the component.
func renderComponent(t *testing.T, component string) []*unstructured.Unstructured {
	t.Helper()
	if component == "default" {
		return renderKustomization(t, component)
	}
	return render(t, []string{"kustomize", overlay(component)}, framework.RunKubectl)
}

// rendered caches the output of programs by their arguments: many tests render the same.
var rendered sync.Map

func render(t *testing.T, args []string, run func(t testing.TB, kubeconfig string, args ...string) (stdout, stderr string)) []*unstructured.Unstructured {
	t.Helper()
	key := strings.Join(args, "\n")
	out, ok := rendered.Load(key)
	if !ok {
		out, _ = run(t, os.DevNull, args...)
		rendered.Store(key, out)
	}
	return decodeObjects(t, out.(string))
}

func decodeObjects(t *testing.T, manifests string) []*unstructured.Unstructured {
	t.Helper()
	var all []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(strings.NewReader(manifests), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(&object.Object)
		if errors.Is(err, io.EOF) {
			return all
		}
		assert.NoError(t, err)
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

// findObject returns the object of a kind, and of a name if one is given.
func findObject(t *testing.T, all []*unstructured.Unstructured, kind string, name ...string) *unstructured.Unstructured {
	t.Helper()
	n := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool {
		return o.GetKind() == kind && (len(name) == 0 || o.GetName() == name[0])
	})
	assert.Require(t, n >= 0, "there is no %s %v", kind, name)
	return all[n]
}

// fieldAt returns the value at a path of an object.
func fieldAt(t *testing.T, object *unstructured.Unstructured, path ...string) any {
	t.Helper()
	value, ok, err := unstructured.NestedFieldNoCopy(object.Object, path...)
	assert.Require(t, err == nil && ok, "%s has no %s (error %v)", object.GetKind(), strings.Join(path, "."), err)
	return value
}

// controllerContainer returns the Deployment's only container.
func controllerContainer(t *testing.T, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()
	all, _ := fieldAt(t, deployment, "spec", "template", "spec", "containers").([]any)
	assert.Require(t, len(all) == 1, "the Deployment has %d containers, want 1", len(all))
	return all[0].(map[string]any)
}
