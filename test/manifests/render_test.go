// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"

	"cloudnative.tw/drover/test/framework"
)

// repositoryRoot of the checkout, from this folder.
const repositoryRoot = "../.."

// namespace that Drover is installed in.
const namespace = "drover-system"

// How long a program may take; Helm is built if it is not there yet.
const (
	commandWithin = time.Minute
	buildWithin   = 10 * time.Minute
)

// Where the chart and the kubelet's file are.
var (
	chart     = filepath.Join(repositoryRoot, "charts", "drover")
	staticPod = filepath.Join(repositoryRoot, "config", "static-pod", "drover-controller.yaml")
)

func configPath(name string) string { return filepath.Join(repositoryRoot, "config", name) }

// runCommand runs a program to its end and returns what it printed.
func runCommand(t *testing.T, within time.Duration, env []string, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), within)
	defer cancel()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err = cmd.Run()
	return out.String(), errOut.String(), err
}

func mustRunCommand(t *testing.T, within time.Duration, env []string, name string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := runCommand(t, within, env, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout, stderr
}

// runKubectl is the one in bin/drover.
func runKubectl(t *testing.T, kubeconfig string, args ...string) (stdout, stderr string) {
	t.Helper()
	binary, err := framework.DroverBinary()
	if err != nil {
		t.Fatal(err)
	}
	return mustRunCommand(t, commandWithin, []string{"KUBECONFIG=" + kubeconfig}, binary, append([]string{"kubectl"}, args...)...)
}

// helm is the path of the Helm that hack/tools/helm pins, once it is built.
var helm struct {
	sync.Mutex
	path string
}

func helmPath(t *testing.T) string {
	t.Helper()
	helm.Lock()
	defer helm.Unlock()
	if helm.path == "" {
		out, _ := mustRunCommand(t, buildWithin, nil, filepath.Join(repositoryRoot, "hack", "tool.sh"), "helm")
		helm.path = strings.TrimSpace(out)
	}
	return helm.path
}

func runHelm(t *testing.T, kubeconfig string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := tryHelm(t, kubeconfig, args...)
	if err != nil {
		t.Fatalf("helm %s: %v\n%s%s", strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout, stderr
}

func tryHelm(t *testing.T, kubeconfig string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	dir := t.TempDir() // not the tester's own settings
	env := []string{"KUBECONFIG=" + kubeconfig, "HELM_CACHE_HOME=" + dir, "HELM_CONFIG_HOME=" + dir, "HELM_DATA_HOME=" + dir}
	return runCommand(t, commandWithin, env, helmPath(t), args...)
}

// renderKustomization renders a folder of config/.
func renderKustomization(t *testing.T, name string) []*unstructured.Unstructured {
	t.Helper()
	out, _ := runKubectl(t, os.DevNull, "kustomize", configPath(name))
	return decodeObjects(t, out)
}

// renderChart renders the chart.
func renderChart(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	out, _ := runHelm(t, os.DevNull, append([]string{"template", "drover", chart, "--namespace", namespace}, args...)...)
	return decodeObjects(t, out)
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
		if err != nil {
			t.Fatal(err)
		}
		if len(object.Object) > 0 {
			all = append(all, object)
		}
	}
}

// findObject returns the only object of a kind.
func findObject(t *testing.T, all []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
	t.Helper()
	n := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind })
	if n < 0 {
		t.Fatalf("there is no %s", kind)
	}
	return all[n]
}

// fieldAt returns the value at a path of an object.
func fieldAt(t *testing.T, object *unstructured.Unstructured, path ...string) any {
	t.Helper()
	value, ok, err := unstructured.NestedFieldNoCopy(object.Object, path...)
	if err != nil || !ok {
		t.Fatalf("%s has no %s (error %v)", object.GetKind(), strings.Join(path, "."), err)
	}
	return value
}

// controllerContainer returns the Deployment's only container.
func controllerContainer(t *testing.T, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()
	all, _ := fieldAt(t, deployment, "spec", "template", "spec", "containers").([]any)
	if len(all) != 1 {
		t.Fatalf("the Deployment has %d containers, want 1", len(all))
	}
	return all[0].(map[string]any)
}
