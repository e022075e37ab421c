// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"

	"cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/client/informers/externalversions"
	listers "cloudnative.tw/drover/client/listers/cloudnative/v1alpha1"
)

type options struct {
	namespace   string        // empty means all
	watch       bool          // print changes until the context ends
	syncTimeout time.Duration // how long the first list may take
}

// listVMs prints the VirtualMachines and, with opts.watch, their changes until ctx
// ends, which is not an error.
func listVMs(ctx context.Context, client versioned.Interface, opts options, out io.Writer) error {
	if err := checkAccess(ctx, client, opts); err != nil {
		return err
	}
	factory := externalversions.NewSharedInformerFactoryWithOptions(client, 0,
		externalversions.WithNamespace(opts.namespace))
	vms := factory.Cloudnative().V1alpha1().VirtualMachines()
	informer, lister := vms.Informer(), vms.Lister()

	// Shutdown waits for the informers, so their context has to end first.
	ctx, cancel := context.WithCancel(ctx)
	defer factory.Shutdown()
	defer cancel()

	changes, err := subscribeToChanges(ctx, informer)
	if err != nil {
		return err
	}
	if err := fillCache(ctx, factory, opts.syncTimeout); err != nil {
		return err
	}
	if err := printAll(lister, out); err != nil {
		return err
	}
	if !opts.watch {
		return nil
	}
	return printChanges(ctx, changes, out)
}

// checkAccess sends one request, because an informer that gets no response retries for
// ever and reports nothing.
func checkAccess(ctx context.Context, client versioned.Interface, opts options) error {
	ctx, cancel := context.WithTimeout(ctx, opts.syncTimeout)
	defer cancel()
	_, err := client.CloudnativeV1alpha1().VirtualMachines(opts.namespace).List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return fmt.Errorf("list the VirtualMachines: %w", err)
	}
	return nil
}

// fillCache waits until the informer has listed everything.
func fillCache(ctx context.Context, factory externalversions.SharedInformerFactory, within time.Duration) error {
	factory.StartWithContext(ctx)
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := factory.WaitForCacheSyncWithContext(ctx).AsError(); err != nil {
		return fmt.Errorf("fill the cache within %s: %w", within, err)
	}
	return nil
}

// printAll reads the cache; it sends no request to the API server.
func printAll(lister listers.VirtualMachineLister, out io.Writer) error {
	vms, err := lister.List(labels.Everything())
	if err != nil {
		return fmt.Errorf("read the cache: %w", err)
	}
	slices.SortFunc(vms, func(a, b *v1alpha1.VirtualMachine) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	table := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	_, _ = fmt.Fprintln(table, "NAMESPACE\tNAME\tSTATUS\tCPU\tMEMORY")
	for _, vm := range vms {
		cpu, memory := usageText(vm)
		_, _ = fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\n", vm.Namespace, vm.Name, phaseText(vm), cpu, memory)
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

func printChanges(ctx context.Context, changes <-chan string, out io.Writer) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case change := <-changes:
			if _, err := fmt.Fprintln(out, change); err != nil {
				return fmt.Errorf("print: %w", err)
			}
		}
	}
}

// subscribeToChanges registers for changes after the first list. Objects
// in the cache are shared: read them, never change them.
func subscribeToChanges(ctx context.Context, informer cache.SharedIndexInformer) (<-chan string, error) {
	changes := make(chan string)
	send := func(format string, args ...any) {
		select {
		case changes <- fmt.Sprintf(format, args...):
		case <-ctx.Done():
		}
	}
	_, err := informer.AddEventHandler(cache.ResourceEventHandlerDetailedFuncs{
		AddFunc: func(obj any, isInInitialList bool) {
			if vm, ok := obj.(*v1alpha1.VirtualMachine); ok && !isInInitialList {
				send("added    %s/%s %s", vm.Namespace, vm.Name, phaseText(vm))
			}
		},
		UpdateFunc: func(before, after any) {
			old, okOld := before.(*v1alpha1.VirtualMachine)
			vm, ok := after.(*v1alpha1.VirtualMachine)
			if ok && okOld && describeVM(old) != describeVM(vm) {
				send("changed  %s/%s %s", vm.Namespace, vm.Name, describeVM(vm))
			}
		},
		DeleteFunc: func(obj any) {
			// What was deleted while the watch was broken comes with its key alone.
			if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(obj); err == nil {
				send("deleted  %s", key)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("subscribe to changes: %w", err)
	}
	return changes, nil
}

func describeVM(vm *v1alpha1.VirtualMachine) string {
	cpu, memory := usageText(vm)
	return fmt.Sprintf("%s cpu %s memory %s", phaseText(vm), cpu, memory)
}

// phaseText returns the phase, or "-" until a controller has observed the VirtualMachine.
func phaseText(vm *v1alpha1.VirtualMachine) string {
	return cmp.Or(string(vm.Status.Phase), "-")
}

// usageText returns the usage, or "-" until the server was sampled.
func usageText(vm *v1alpha1.VirtualMachine) (cpu, memory string) {
	if vm.Status.Server == nil || vm.Status.Server.Usage == nil {
		return "-", "-"
	}
	u := vm.Status.Server.Usage
	return fmt.Sprintf("%.2f%%", u.CPU), fmt.Sprintf("%.2f%%", u.Memory)
}
