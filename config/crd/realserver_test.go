// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package crd_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/config/crd"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// What the tests in validation_test.go say in process holds on a real
// kube-apiserver, to the letter.
func TestRealAPIServer(t *testing.T) {
	server := connect(t, framework.StartCluster(t, framework.ClusterOptions{}).Config)
	server.requireThisDefinition(t)

	for name, tc := range createCases() {
		t.Run("create/"+name, func(t *testing.T) {
			expect(t, server.create(t, tc.manifest), tc.want)
		})
	}
	for name, tc := range updateCases {
		t.Run("update/"+name, func(t *testing.T) {
			expect(t, server.update(t, vm(tc.before), vm(tc.after)), tc.want)
		})
	}
	t.Run("examples", func(t *testing.T) { eachExample(t, server.create) })
	t.Run("unknown fields", server.testUnknownField)
	t.Run("a new object's status", server.testNewStatus)
	t.Run("field selectors", server.testFieldSelectors)
}

type realServer struct {
	all     dynamic.Interface
	vms     dynamic.ResourceInterface
	decoder apiServer
}

func connect(t *testing.T, config *rest.Config) realServer {
	t.Helper()
	client, err := dynamic.NewForConfig(config)
	assert.NoError(t, err)
	return realServer{
		all:     client,
		vms:     client.Resource(v1alpha1.SchemeGroupVersion.WithResource("virtualmachines")).Namespace("default"),
		decoder: newAPIServer(t),
	}
}

// requireThisDefinition guards against a bin/drover that was built before the
// CRD was changed.
func (s realServer) requireThisDefinition(t *testing.T) {
	t.Helper()
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	installed, err := s.all.Resource(resource).Get(t.Context(), "virtualmachines.cloudnative.tw", metav1.GetOptions{})
	assert.NoError(t, err)
	var embedded unstructured.Unstructured
	assert.NoError(t, yaml.Unmarshal(crd.VirtualMachine, &embedded.Object))
	got, want := versionOf(t, installed), versionOf(t, &embedded)
	if !equality.Semantic.DeepEqual(got, want) {
		t.Fatal("bin/drover installs another CRD than config/crd: build it again")
	}
}

func versionOf(t *testing.T, definition *unstructured.Unstructured) any {
	t.Helper()
	versions, _, err := unstructured.NestedSlice(roundTrip(t, definition).Object, "spec", "versions")
	if err != nil || len(versions) != 1 {
		t.Fatalf("%d versions, error %v, want one version", len(versions), err)
	}
	return versions[0]
}

// roundTrip makes numbers of all decoders the same.
func roundTrip(t *testing.T, object *unstructured.Unstructured) *unstructured.Unstructured {
	t.Helper()
	text, err := object.MarshalJSON()
	assert.NoError(t, err)
	same := &unstructured.Unstructured{}
	assert.NoError(t, same.UnmarshalJSON(text))
	return same
}

func (s realServer) create(t *testing.T, manifest string) []string {
	t.Helper()
	_, err := s.tryCreate(t, manifest, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	return causes(t, err)
}

func (s realServer) update(t *testing.T, before, after string) []string {
	t.Helper()
	version, err := s.tryCreate(t, before, metav1.CreateOptions{})
	assert.NoError(t, err)
	object := s.decoder.decode(t, after)
	object.SetResourceVersion(version)
	_, updateErr := s.vms.Update(t.Context(), object, metav1.UpdateOptions{DryRun: []string{metav1.DryRunAll}})
	assert.NoError(t, s.vms.Delete(t.Context(), object.GetName(), metav1.DeleteOptions{}))
	return causes(t, updateErr)
}

// tryCreate returns the new object's resourceVersion.
func (s realServer) tryCreate(t *testing.T, manifest string, opts metav1.CreateOptions) (string, error) {
	t.Helper()
	object := s.decoder.decode(t, manifest)
	object.SetResourceVersion("")
	created, err := s.vms.Create(t.Context(), object, opts)
	if err != nil {
		return "", err
	}
	return created.GetResourceVersion(), nil
}

// causes are an answer's errors as messages gives them.
func causes(t *testing.T, err error) []string {
	t.Helper()
	if err == nil {
		return nil
	}
	var status apierrors.APIStatus
	if !errors.As(err, &status) || status.Status().Details == nil || len(status.Status().Details.Causes) == 0 {
		t.Fatalf("no list of causes: %v", err)
	}
	var texts []string
	for _, cause := range status.Status().Details.Causes {
		if cause.Field != "<nil>" {
			texts = append(texts, cause.Field+": "+cause.Message)
		}
	}
	return texts
}

func (s realServer) testUnknownField(t *testing.T) {
	manifest := vm(`{resource: {cpu: 1, memory: 1G}, cpus: 2}`)
	opts := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}, FieldValidation: metav1.FieldValidationStrict}
	_, err := s.tryCreate(t, manifest, opts)
	if err == nil || !strings.Contains(err.Error(), `unknown field "spec.cpus"`) {
		t.Errorf("error is %v, want one that names spec.cpus", err)
	}
}

func (s realServer) testNewStatus(t *testing.T) {
	manifest := strings.TrimSuffix(vm(minimal), "}") + `, status: {phase: Active}}`
	if _, err := s.tryCreate(t, manifest, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	object, err := s.vms.Get(t.Context(), "test-vm", metav1.GetOptions{})
	assert.NoError(t, err)
	want := map[string]any{"observedGeneration": int64(-1)}
	if !equality.Semantic.DeepEqual(object.Object["status"], want) {
		t.Errorf("status is %v, want %v", object.Object["status"], want)
	}
}

// testFieldSelectors checks that the API server chooses by phase and driver, in a list
// and in a watch, and refuses a field that it cannot choose by.
func (s realServer) testFieldSelectors(t *testing.T) {
	s = s.inNamespace(t, "selectors")
	for name, status := range map[string]string{
		"active": `{phase: Active, driver: qemu}`, "stopped": `{phase: Stopped, driver: qemu}`,
		"other": `{phase: Active, driver: docker}`, "unseen": `{}`,
	} {
		if _, err := s.tryCreate(t, strings.Replace(vm(minimal), "test-vm", name, 1), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		s.setStatus(t, name, status)
	}
	for selector, want := range map[string][]string{
		"status.phase=Active":                    {"active", "other"},
		"status.driver=qemu":                     {"active", "stopped"},
		"status.phase=Active,status.driver=qemu": {"active"},
		"status.phase!=Active":                   {"stopped", "unseen"},
		"status.phase=":                          {"unseen"},
		"status.phase=active":                    nil,
		"metadata.name=other":                    {"other"},
	} {
		if got := s.list(t, selector); !slices.Equal(got, want) {
			t.Errorf("%s selects %q, want %q", selector, got, want)
		}
	}
	_, err := s.vms.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.action=active"})
	if !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), "field label not supported: spec.action") {
		t.Errorf("error is %v, want one that names spec.action", err)
	}
	s.testSelectingWatch(t, "stopped")
}

// testSelectingWatch checks that a VM enters and leaves a watch with its phase.
func (s realServer) testSelectingWatch(t *testing.T, name string) {
	w, err := s.vms.Watch(t.Context(), metav1.ListOptions{FieldSelector: "status.phase=Paused"})
	assert.NoError(t, err)
	defer w.Stop()
	for _, step := range []struct {
		phase string
		want  watch.EventType
	}{{"Paused", watch.Added}, {"Failed", watch.Deleted}} {
		s.setStatus(t, name, "{phase: "+step.phase+"}")
		select {
		case e := <-w.ResultChan():
			if e.Type != step.want {
				t.Errorf("after phase %s the watch has %s, want %s", step.phase, e.Type, step.want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("after phase %s the watch has nothing", step.phase)
		}
	}
}

// inNamespace returns the same for another namespace, which it creates.
func (s realServer) inNamespace(t *testing.T, name string) realServer {
	t.Helper()
	namespace := &unstructured.Unstructured{}
	namespace.SetAPIVersion("v1")
	namespace.SetKind("Namespace")
	namespace.SetName(name)
	resource := schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}
	if _, err := s.all.Resource(resource).Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.vms = s.all.Resource(v1alpha1.SchemeGroupVersion.WithResource("virtualmachines")).Namespace(name)
	s.decoder.namespace = name
	return s
}

func (s realServer) setStatus(t *testing.T, name, status string) {
	t.Helper()
	patch, err := yaml.YAMLToJSON([]byte("{status: " + status + "}"))
	assert.NoError(t, err)
	if _, err := s.vms.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

func (s realServer) list(t *testing.T, selector string) []string {
	t.Helper()
	all, err := s.vms.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
	assert.NoError(t, err)
	var names []string
	for _, object := range all.Items {
		names = append(names, object.GetName())
	}
	return names
}

// eachExample checks that every manifest in examples/ is accepted.
func eachExample(t *testing.T, create func(*testing.T, string) []string) {
	t.Helper()
	files, err := filepath.Glob("../../examples/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("%d examples, error %v", len(files), err)
	}
	for _, file := range files {
		manifest, err := os.ReadFile(file)
		assert.NoError(t, err)
		for _, message := range create(t, string(manifest)) {
			t.Errorf("%s: %s", file, message)
		}
	}
}
