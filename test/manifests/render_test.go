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

	"cloudnative.tw/drover/test/vmtest"
)

// root of the checkout, from this folder.
const root = "../.."

// namespace that Drover is installed in.
const namespace = "drover-system"

// How long a program may take; Helm is built if it is not there yet.
const (
	commandWithin = time.Minute
	buildWithin   = 10 * time.Minute
)

// Where the chart and the kubelet's file are.
var (
	chart     = filepath.Join(root, "charts", "drover")
	staticPod = filepath.Join(root, "config", "static-pod", "drover-controller.yaml")
)

func config(name string) string { return filepath.Join(root, "config", name) }

// run runs a program to its end and returns what it printed.
func run(t *testing.T, within time.Duration, env []string, name string, args ...string) (stdout, stderr string, err error) {
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

func mustRun(t *testing.T, within time.Duration, env []string, name string, args ...string) (stdout, stderr string) {
	t.Helper()
	stdout, stderr, err := run(t, within, env, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", filepath.Base(name), strings.Join(args, " "), err, stdout, stderr)
	}
	return stdout, stderr
}

// kubectl is the one in bin/drover.
func kubectl(t *testing.T, kubeconfig string, args ...string) (stdout, stderr string) {
	t.Helper()
	binary, err := vmtest.DroverBinary()
	if err != nil {
		t.Fatal(err)
	}
	return mustRun(t, commandWithin, []string{"KUBECONFIG=" + kubeconfig}, binary, append([]string{"kubectl"}, args...)...)
}

var helmOnce sync.Mutex

// helm is the one that hack/tools/helm pins.
func helm(t *testing.T, kubeconfig string, args ...string) (stdout, stderr string) {
	t.Helper()
	helmOnce.Lock()
	path, _ := mustRun(t, buildWithin, nil, filepath.Join(root, "hack", "tool.sh"), "helm")
	helmOnce.Unlock()
	home := t.TempDir() // not the tester's own settings
	env := []string{"KUBECONFIG=" + kubeconfig, "HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home}
	return mustRun(t, commandWithin, env, strings.TrimSpace(path), args...)
}

// kustomize renders a folder of config/.
func kustomize(t *testing.T, name string) []*unstructured.Unstructured {
	t.Helper()
	out, _ := kubectl(t, os.DevNull, "kustomize", config(name))
	return decode(t, out)
}

// template renders the chart.
func template(t *testing.T, args ...string) []*unstructured.Unstructured {
	t.Helper()
	out, _ := helm(t, os.DevNull, append([]string{"template", "drover", chart, "--namespace", namespace}, args...)...)
	return decode(t, out)
}

func decode(t *testing.T, manifests string) []*unstructured.Unstructured {
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

// find returns the only object of a kind.
func find(t *testing.T, all []*unstructured.Unstructured, kind string) *unstructured.Unstructured {
	t.Helper()
	n := slices.IndexFunc(all, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind })
	if n < 0 {
		t.Fatalf("there is no %s", kind)
	}
	return all[n]
}

// at returns what stands at a path of an object.
func at(t *testing.T, object *unstructured.Unstructured, path ...string) any {
	t.Helper()
	value, ok, err := unstructured.NestedFieldNoCopy(object.Object, path...)
	if err != nil || !ok {
		t.Fatalf("%s has no %s (error %v)", object.GetKind(), strings.Join(path, "."), err)
	}
	return value
}

// controllerOf returns the Deployment's only container.
func controllerOf(t *testing.T, deployment *unstructured.Unstructured) map[string]any {
	t.Helper()
	all, _ := at(t, deployment, "spec", "template", "spec", "containers").([]any)
	if len(all) != 1 {
		t.Fatalf("the Deployment has %d containers, want 1", len(all))
	}
	return all[0].(map[string]any)
}
