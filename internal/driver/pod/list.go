// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/pod/instance"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// List implements driver.Driver. It reads a single server live, and others from the informers of an open
// watch if these have all versions that this process has read and written.
func (d *Driver) List(ctx context.Context, uids ...types.UID) ([]driver.Server, error) {
	ctx, cancel := d.calls.Limit(ctx)
	defer cancel()
	found, err := d.reader.List(ctx, uids...)
	if err != nil {
		return nil, err
	}
	if len(uids) == 0 {
		d.forgetMachines(found)
	}
	var servers []driver.Server
	for _, i := range found {
		if s := i.Server(); len(uids) == 0 || !s.Retained {
			servers = append(servers, s)
		}
	}
	return servers, nil
}

// forgetMachines forgets the Secrets, rejections and machines of pods that a complete list did not find.
func (d *Driver) forgetMachines(found []*instance.Instance) {
	present := map[types.UID]bool{}
	for _, i := range found {
		if i.Pod != nil {
			present[i.Pod.UID] = true
		}
	}
	d.secrets.DeleteFunc(func(pod types.UID, _ *corev1.Secret) bool { return !present[pod] })
	d.reader.ForgetRejections(func(pod types.UID) bool { return present[pod] })
	d.machines.Forget(func(pod types.UID) bool { return present[pod] })
}

// Watch implements driver.Driver. It follows the pods and PVCs of this cluster's servers. Informers list
// again after a connection was lost, so that no change is missed.
func (d *Driver) Watch(ctx context.Context) (<-chan types.UID, error) {
	running, stop := context.WithCancelCause(ctx)
	informers, err := d.reader.NewInformers(stop)
	if err != nil {
		stop(err)
		return nil, err
	}
	queue := d.watches.Open(running)
	var following sync.WaitGroup
	for _, informer := range []cache.SharedIndexInformer{informers.Pods, informers.Claims} {
		_, err := informer.AddEventHandler(newEventHandler(queue))
		if err == nil {
			following.Go(func() { informer.RunWithContext(running) })
			err = waitForSync(running, d.CallTimeout, informer.HasSynced) // one by one, so that the same cause is named each time
		}
		if err != nil {
			stop(err)
			following.Wait()
			return nil, err
		}
	}
	uids := make(chan types.UID)
	d.reader.Watched.Store(informers)
	following.Go(func() { d.sampleAll(running) })
	go func() {
		defer close(uids)
		defer following.Wait()
		defer stop(nil)
		defer d.reader.Watched.CompareAndSwap(informers, nil)
		kit.Send(running, queue, uids, nil)
	}()
	return uids, nil
}

// waitForSync waits for the first list, until one fails, and at most for the timeout.
func waitForSync(ctx context.Context, timeout time.Duration, synced cache.InformerSynced) error {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, fmt.Errorf("no answer within %v", timeout.Round(time.Second)))
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), synced) {
		return driver.Errorf(driver.ErrUnavailable, "the cluster did not list its pods: %w", context.Cause(ctx))
	}
	return nil
}

// newEventHandler returns a handler that queues the UID of each object that changes.
func newEventHandler(queue *kit.Queue) cache.ResourceEventHandler {
	add := func(o any) {
		if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = unknown.Obj
		}
		if m, ok := o.(metav1.Object); ok {
			queue.Add(types.UID(m.GetLabels()[objects.LabelUID]))
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }, DeleteFunc: add}
}
