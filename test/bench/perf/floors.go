// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/client/informers/externalversions"
)

// floors are processes that do a part of a controller's necessary work, and nothing
// else. They run as this program with the floor's name as first argument.
var floors = map[string]func(context.Context, *rest.Config) error{
	floorNoop:  runNoopFloor,
	floorBare:  runBareNoopFloor,
	floorCache: runCacheFloor,
}

const (
	floorNoop  = "noop"
	floorBare  = "bare-noop"
	floorCache = "cache"
	// floorReady is what a floor prints when its cache is filled.
	floorReady = "cache filled"
)

func floorMain(ctx context.Context, floor func(context.Context, *rest.Config) error, args []string) error {
	if len(args) != 1 {
		return errors.New("a floor takes the path of a kubeconfig")
	}
	cfg, err := clientcmd.BuildConfigFromFlags("", args[0])
	if err != nil {
		return err
	}
	cfg.QPS = -1 // as drover-controller
	return floor(ctx, cfg)
}

// runCacheFloor is a typed informer with stripped objects.
func runCacheFloor(ctx context.Context, cfg *rest.Config) error {
	c, err := versioned.NewForConfig(cfg)
	if err != nil {
		return err
	}
	informers := newInformers(c)
	informers.Cloudnative().V1alpha1().VirtualMachines().Informer()
	if err := fillCache(ctx, informers); err != nil {
		return err
	}
	<-ctx.Done()
	informers.Shutdown()
	return nil
}

func newInformers(c versioned.Interface) externalversions.SharedInformerFactory {
	return externalversions.NewSharedInformerFactoryWithOptions(c, 0, externalversions.WithTransform(stripManagedFields))
}

// fillCache starts the informers, and returns when they have all objects.
func fillCache(ctx context.Context, informers externalversions.SharedInformerFactory) error {
	informers.Start(ctx.Done())
	soon, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	for kind, ok := range informers.WaitForCacheSync(soon.Done()) {
		if !ok {
			return fmt.Errorf("the cache of %s was not filled", kind)
		}
	}
	fmt.Println(floorReady, time.Now().Format(time.RFC3339Nano))
	return nil
}

// stripManagedFields drops unused fields, as drover-controller does.
func stripManagedFields(object any) (any, error) {
	if _, ok := object.(cache.DeletedFinalStateUnknown); ok {
		return object, nil
	}
	about, err := meta.Accessor(object)
	if err == nil {
		about.SetManagedFields(nil)
	}
	return object, err
}
