// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	metadatafake "k8s.io/client-go/metadata/fake"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/standalone/internal/controlplane"
	"cloudnative.tw/drover/standalone/internal/datadir"
)

// TestNoImagesFromTheDataDir : the drivers know what is the program's own.
func TestNoImagesFromTheDataDir(t *testing.T) {
	t.Parallel()
	o := &upOptions{controller: newControllerOptions()}
	o.controllerParts(&controlplane.Config{Dir: &datadir.Dir{Layout: "/data"}}, nil)
	if own := o.controller.Drivers.Private; !slices.Equal(own, []string{"/data"}) {
		t.Errorf("its own folders are %q", own)
	}
}

// TestAPredecessorIsDead : whoever has the data dir need not wait for another
// drover up, but for every other controller.
func TestAPredecessorIsDead(t *testing.T) {
	t.Parallel()
	o := newControllerOptions()
	own, err := leader.Identity(o.HolderIdentity)
	if err := o.Validate(); err != nil {
		t.Error(err)
	}
	if err != nil || !o.DeadHolder(own) {
		t.Errorf("%q, %v: want it dead", own, err)
	}
	other, err := leader.Identity("drover-up")
	if err != nil || o.DeadHolder(other) || o.DeadHolder("") {
		t.Errorf("%q, %v: want it alive", other, err)
	}
}

// TestExample : whoever follows what drover up prints gets a VM.
func TestExample(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ drivers, image, want string }{
		{"docker,qemu,fake", "", "test-vm"},
		{"qemu,fake", "", "qemu-vm"},
		{"qemu,fake", "/images/debian.qcow2", "test-vm"},
		{"fake", "", "test-vm"},
	} {
		o := &upOptions{controller: newControllerOptions()}
		o.controller.VMDriver, o.controller.Drivers.QEMUImage = tc.drivers, tc.image
		if got := o.example(); got != "examples/"+tc.want+".yaml" {
			t.Errorf("%+v: got %s", tc, got)
		}
	}
}

// TestBindings : a VM that has a finalizer and no binding may be bound to any engine.
func TestBindings(t *testing.T) {
	t.Parallel()
	vm := func(name, bound string, finalizers ...string) runtime.Object {
		return &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: api.SchemeGroupVersion.String(), Kind: "VirtualMachine"},
			ObjectMeta: metav1.ObjectMeta{
				Namespace: "default", Name: name, Finalizers: finalizers, Annotations: map[string]string{api.AnnotationBound: bound},
			},
		}
	}
	scheme := metadatafake.NewTestScheme()
	_ = metav1.AddMetaToScheme(scheme)
	all := []runtime.Object{
		vm("new", ""), vm("a", "docker/A", api.FinalizerServer), vm("b", "docker/A", api.FinalizerServer), vm("c", "qemu/B", api.FinalizerServer),
	}
	bound, err := bindings(t.Context(), metadatafake.NewSimpleMetadataClient(scheme, all...))
	if err != nil || !bound.Complete || !slices.Equal(bound.Engines, []string{"docker/A", "qemu/B"}) {
		t.Errorf("got %+v, %v", bound, err)
	}
	bound, err = bindings(t.Context(), metadatafake.NewSimpleMetadataClient(scheme, vm("lost", "", api.FinalizerServer)))
	if err != nil || bound.Complete {
		t.Errorf("got %+v, %v", bound, err)
	}
}
