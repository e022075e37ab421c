// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/client/informers/externalversions"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// floorName, as first argument, makes this program two bare informers.
const floorName = "informers"

// floorReady is what they print when their caches are filled.
const floorReady = "caches filled"

// runFloor keeps all VirtualMachines and pods in memory, as any controller for both does,
// and does nothing else.
func runFloor(ctx context.Context, kubeconfig string) error {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return err
	}
	config.QPS = -1
	vms, err := versioned.NewForConfig(config)
	if err != nil {
		return err
	}
	core, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	ofVMs, ofPods := externalversions.NewSharedInformerFactory(vms, 0), informers.NewSharedInformerFactory(core, 0)
	ofVMs.Cloudnative().V1alpha1().VirtualMachines().Informer()
	ofPods.Core().V1().Pods().Informer()
	if err := fillCaches(ctx, ofVMs, ofPods); err != nil {
		return err
	}
	fmt.Println(floorReady)
	<-ctx.Done()
	return nil
}

// measureFloor returns the memory of the informers, some time after their caches are filled.
func (e *environment) measureFloor(ctx context.Context) (m bench.Memory, err error) {
	self, err := os.Executable()
	if err != nil {
		return m, err
	}
	p, err := framework.StartProcess(self, []string{floorName, e.cluster.Kubeconfig}, nil)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	if err := waitUntil(ctx, "the informers are filled", func(context.Context) error {
		if p.Output() == "" {
			return errors.New("they are not")
		}
		return nil
	}); err != nil {
		return m, fmt.Errorf("%w: %s", err, p.Output())
	}
	if err := bench.Pause(ctx, settlePause); err != nil {
		return m, err
	}
	return bench.MemoryOf(p.PID())
}

// fillCaches starts informers and returns when their caches are filled.
func fillCaches(ctx context.Context, ofVMs externalversions.SharedInformerFactory, ofPods informers.SharedInformerFactory) error {
	ofVMs.Start(ctx.Done())
	ofPods.Start(ctx.Done())
	for _, filled := range []map[reflect.Type]bool{ofVMs.WaitForCacheSync(ctx.Done()), ofPods.WaitForCacheSync(ctx.Done())} {
		for kind, ok := range filled {
			if !ok {
				return fmt.Errorf("the cache of %s was not filled", kind)
			}
		}
	}
	return nil
}

// waitUntil repeats check until it returns nil.
func waitUntil(ctx context.Context, what string, check func(context.Context) error) error {
	var cause error
	err := wait.PollUntilContextTimeout(ctx, pollPeriod, stepTimeout, true, func(ctx context.Context) (bool, error) {
		cause = check(ctx)
		return cause == nil, nil
	})
	if err != nil {
		return fmt.Errorf("%s: %w: %w", what, err, cause)
	}
	return nil
}
