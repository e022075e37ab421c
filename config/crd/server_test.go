// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

// Package crd_test tests the CRD with a real kube-apiserver, which has all APIs of Kubernetes for the
// manifests of other kinds in the docs.
package crd_test

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"sigs.k8s.io/yaml"

	"cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/config/crd"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

var cluster *framework.Cluster

func TestMain(m *testing.M) {
	os.Exit(framework.RunTests(m, &cluster, framework.ClusterOptions{Args: []string{"--all-apis"}}))
}

// server is the VirtualMachines of a real kube-apiserver. It has accepted the CRD, and with it the
// estimated cost of the rules.
type server struct{ dynamic.ResourceInterface }

func connect(t *testing.T) server {
	t.Helper()
	client, err := dynamic.NewForConfig(cluster.Config)
	assert.NoError(t, err)
	return server{client.Resource(v1alpha1.SchemeGroupVersion.WithResource("virtualmachines")).Namespace("default")}
}

var dryRun = []string{metav1.DryRunAll}

// create tries to create what a manifest has, and returns what that would be.
func (s server) create(t *testing.T, manifest string, opts metav1.CreateOptions) (*unstructured.Unstructured, error) {
	t.Helper()
	return s.Create(t.Context(), decode(t, manifest), opts)
}

// checkCreate checks which errors there are.
func (s server) checkCreate(t *testing.T, manifest string, want []string) {
	t.Helper()
	_, err := s.create(t, manifest, metav1.CreateOptions{DryRun: dryRun})
	expect(t, causes(t, err), want)
}

// checkUpdate checks which errors an update has, of the status if that is the subresource.
func (s server) checkUpdate(t *testing.T, before, after string, want []string, subresource ...string) {
	t.Helper()
	created, err := s.create(t, before, metav1.CreateOptions{})
	assert.NoError(t, err)
	object := decode(t, after)
	object.SetResourceVersion(created.GetResourceVersion())
	_, updateErr := s.Update(t.Context(), object, metav1.UpdateOptions{DryRun: dryRun}, subresource...)
	assert.NoError(t, s.Delete(t.Context(), object.GetName(), metav1.DeleteOptions{}))
	expect(t, causes(t, updateErr), want)
}

func decode(t *testing.T, manifest string) *unstructured.Unstructured {
	t.Helper()
	object := &unstructured.Unstructured{}
	text, err := yaml.YAMLToJSON([]byte(manifest))
	assert.NoError(t, err)
	assert.NoError(t, object.UnmarshalJSON(text))
	return object
}

// causes returns an answer's errors, without those that have no field and repeat the others.
func causes(t *testing.T, err error) (texts []string) {
	t.Helper()
	if err == nil {
		return nil
	}
	var status apierrors.APIStatus
	assert.Require(t, errors.As(err, &status) && status.Status().Details != nil && len(status.Status().Details.Causes) != 0, "no list of causes: %v", err)
	for _, cause := range status.Status().Details.Causes {
		if cause.Field != "<nil>" {
			texts = append(texts, cause.Field+": "+cause.Message)
		}
	}
	return texts
}

// definition is the CRD of this package.
func definition(t *testing.T) (d apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	assert.NoError(t, yaml.UnmarshalStrict(crd.VirtualMachine, &d))
	return d
}

// TestInstalled guards against a bin/drover that was built before the CRD was changed.
func TestInstalled(t *testing.T) {
	client, err := dynamic.NewForConfig(cluster.Config)
	assert.NoError(t, err)
	resource := schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}
	found, err := client.Resource(resource).Get(t.Context(), "virtualmachines.cloudnative.tw", metav1.GetOptions{})
	assert.NoError(t, err)
	var installed apiextensionsv1.CustomResourceDefinition
	assert.NoError(t, runtime.DefaultUnstructuredConverter.FromUnstructured(found.Object, &installed))
	assert.Require(t, equality.Semantic.DeepEqual(installed.Spec.Versions, definition(t).Spec.Versions),
		"bin/drover installs another CRD than config/crd: build it again")
}

// TestObjectsOfAnEarlierVersion checks that an object which breaks a rule that is new can be changed and deleted,
// with a copy of the CRD in another group.
func TestObjectsOfAnEarlierVersion(t *testing.T) {
	const group = "earlier.example"
	client, err := dynamic.NewForConfig(cluster.Config)
	assert.NoError(t, err)
	crds := client.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	d := definition(t)
	d.Name, d.Spec.Group, d.Spec.Names.ShortNames, d.Spec.Names.Categories = d.Spec.Names.Plural+"."+group, group, nil, nil
	spec := d.Spec.Versions[0].Schema.OpenAPIV3Schema.Properties["spec"]
	ports := spec.Properties["ports"]
	rules := ports.XValidations
	setRules := func(rules apiextensionsv1.ValidationRules) *unstructured.Unstructured {
		ports.XValidations = rules
		spec.Properties["ports"] = ports
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&d)
		assert.NoError(t, err)
		return &unstructured.Unstructured{Object: content}
	}
	assert.NoError(t, assert.ErrorOf(crds.Create(t.Context(), setRules(nil), metav1.CreateOptions{})))
	vms := client.Resource(schema.GroupVersionResource{Group: group, Version: d.Spec.Versions[0].Name, Resource: d.Spec.Names.Plural}).Namespace("default")
	two := decode(t, vm(`{resource: {cpu: 1, memory: 1G}, ports: [{name: a, port: 80}, {name: b, port: 80}]}`))
	two.SetAPIVersion(group + "/" + d.Spec.Versions[0].Name)
	var old *unstructured.Unstructured
	assert.Eventually(t, "an object of the earlier version is created", func(t testing.TB) (err error) {
		old, err = vms.Create(t.Context(), two, metav1.CreateOptions{})
		return err
	})
	assert.Eventually(t, "the rules are in force", func(t testing.TB) error {
		now, err := crds.Get(t.Context(), d.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		d.ResourceVersion = now.GetResourceVersion()
		if _, err := crds.Update(t.Context(), setRules(rules), metav1.UpdateOptions{}); err != nil {
			return err
		}
		another := two.DeepCopy()
		another.SetName("another")
		if _, err := vms.Create(t.Context(), another, metav1.CreateOptions{DryRun: dryRun}); !apierrors.IsInvalid(err) {
			return fmt.Errorf("another such object gives %w", err)
		}
		return nil
	})
	old.SetFinalizers([]string{"example.com/f"})
	old, err = vms.Update(t.Context(), old, metav1.UpdateOptions{})
	assert.NoError(t, err)
	assert.NoError(t, vms.Delete(t.Context(), old.GetName(), metav1.DeleteOptions{}))
	assert.NoError(t, assert.ErrorOf(vms.Patch(t.Context(), old.GetName(), types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`), metav1.PatchOptions{})))
	assert.NoError(t, crds.Delete(t.Context(), d.Name, metav1.DeleteOptions{}))
}

func TestUnknownField(t *testing.T) {
	manifest := vm(`{resource: {cpu: 1, memory: 1G}, cpus: 2}`)
	_, err := connect(t).create(t, manifest, metav1.CreateOptions{DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict})
	assert.True(t, err != nil && strings.Contains(err.Error(), `unknown field "spec.cpus"`), "error is %v, want one that names spec.cpus", err)
}

// TestFieldSelectors checks that the API server chooses by phase and driver, in a list
// and in a watch, and refuses a field that it cannot choose by.
func TestFieldSelectors(t *testing.T) {
	s := connect(t)
	for name, status := range map[string]string{
		"active": `{phase: Active, driver: qemu}`, "stopped": `{phase: Stopped, driver: qemu}`,
		"other": `{phase: Active, driver: docker}`, "unseen": `{}`,
	} {
		_, err := s.create(t, named(name), metav1.CreateOptions{})
		assert.NoError(t, err)
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
		all, err := s.List(t.Context(), metav1.ListOptions{FieldSelector: selector})
		assert.NoError(t, err)
		var got []string
		for _, object := range all.Items {
			got = append(got, object.GetName())
		}
		assert.True(t, slices.Equal(got, want), "%s selects %q, want %q", selector, got, want)
	}
	_, err := s.List(t.Context(), metav1.ListOptions{FieldSelector: "spec.action=active"})
	assert.True(t, apierrors.IsBadRequest(err) && strings.Contains(err.Error(), "field label not supported: spec.action"),
		"error is %v, want one that names spec.action", err)
	s.checkSelectingWatch(t, "stopped")
}

// checkSelectingWatch checks that a VM enters and leaves a watch with its phase.
func (s server) checkSelectingWatch(t *testing.T, name string) {
	t.Helper()
	w, err := s.Watch(t.Context(), metav1.ListOptions{FieldSelector: "status.phase=Paused"})
	assert.NoError(t, err)
	defer w.Stop()
	for _, step := range []struct {
		phase string
		want  watch.EventType
	}{{"Paused", watch.Added}, {"Failed", watch.Deleted}} {
		s.setStatus(t, name, "{phase: "+step.phase+"}")
		assert.Equal(t, "after phase "+step.phase+" the watch has", assert.Receive(t, "the event of phase "+step.phase, w.ResultChan()).Type, step.want)
	}
}

func (s server) setStatus(t *testing.T, name, status string) {
	t.Helper()
	patch, err := yaml.YAMLToJSON([]byte("{status: " + status + "}"))
	assert.NoError(t, err)
	_, err = s.Patch(t.Context(), name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	assert.NoError(t, err)
}
