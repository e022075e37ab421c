// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/client/informers/externalversions"
	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/framework"
)

// Floor is the main function of a process that does only a part of a controller's necessary
// work. It runs in the benchmark's program with the floor's name as first argument.
type Floor func(ctx context.Context, cfg *rest.Config, args []string) error

// floorReady is the line that a floor prints when it is ready.
const floorReady = "the floor is ready"

// SayReady reports that the floor is ready.
func SayReady() { fmt.Println(floorReady) }

func (f Floor) run(ctx context.Context, kubeconfig string, args []string) error {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	cfg.QPS = -1 // as drover-controller
	return f(ctx, cfg, args)
}

// StartFloor starts this program as a floor, and waits until it is ready.
func (e *Environment) StartFloor(name string, args ...string) (*Controller, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := framework.StartProcess(self, append([]string{name, e.Kubeconfig}, args...), nil)
	if err != nil {
		return nil, err
	}
	c := &Controller{Process: p}
	return c, c.awaitReady(func() error {
		return assert.ErrorUnless(strings.Contains(p.Output(), floorReady), "the floor has not printed that it is ready")
	})
}

// NewInformers returns a client of VMs, and typed informers that drop managedFields.
func NewInformers(cfg *rest.Config) (versioned.Interface, externalversions.SharedInformerFactory, error) {
	c, err := versioned.NewForConfig(cfg)
	if err != nil {
		return nil, nil, err
	}
	return c, externalversions.NewSharedInformerFactoryWithOptions(c, 0, externalversions.WithTransform(stripManagedFields)), nil
}

// informers is a factory of informers, for VMs or for Kubernetes' own kinds.
type informers interface {
	Start(stop <-chan struct{})
	WaitForCacheSync(stop <-chan struct{}) map[reflect.Type]bool
}

// FillCaches starts informers, waits until they have all objects, and reports that the floor is ready.
func FillCaches(ctx context.Context, all ...informers) error {
	soon, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for _, factory := range all {
		factory.Start(ctx.Done())
		for kind, ok := range factory.WaitForCacheSync(soon.Done()) {
			if !ok {
				return fmt.Errorf("the cache of %s was not filled", kind)
			}
		}
	}
	SayReady()
	return nil
}

// stripManagedFields drops managedFields, as drover-controller does.
func stripManagedFields(object any) (any, error) {
	if _, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return object, nil
	}
	accessor, err := meta.Accessor(object)
	if err == nil {
		accessor.SetManagedFields(nil)
	}
	return object, err
}
