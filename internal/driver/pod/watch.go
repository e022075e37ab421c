// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

// Watch implements driver.Driver: it follows the pods and PVCs of this cluster's servers. Informers
// list again after a connection was lost, so that no change is missed.
func (d *Driver) Watch(ctx context.Context) (<-chan types.UID, error) {
	informers, err := d.reader.NewInformers()
	if err != nil {
		return nil, err
	}
	running, stop := context.WithCancel(ctx)
	queue := d.watches.Open(running)
	var following sync.WaitGroup
	var synced []cache.InformerSynced
	for _, informer := range []cache.SharedIndexInformer{informers.Pods, informers.Claims} {
		if _, err := informer.AddEventHandler(handler(queue)); err != nil {
			stop()
			return nil, err
		}
		synced = append(synced, informer.HasSynced)
		following.Go(func() { informer.RunWithContext(running) })
	}
	if err := d.waitForSync(ctx, synced); err != nil {
		stop()
		following.Wait()
		return nil, err
	}
	uids := make(chan types.UID)
	d.reader.Watched.Store(informers)
	following.Go(func() { d.sampleFirst(running) })
	go func() {
		defer close(uids)
		defer following.Wait()
		defer stop()
		defer d.reader.Watched.CompareAndSwap(informers, nil)
		kit.Send(ctx, queue, uids, nil)
	}()
	return uids, nil
}

// waitForSync waits for the first lists, within the time of a call.
func (d *Driver) waitForSync(ctx context.Context, synced []cache.InformerSynced) error {
	ctx, cancel := context.WithTimeout(ctx, d.CallTimeout)
	defer cancel()
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		return driver.Errorf(driver.ErrUnavailable, "the cluster did not list its pods within %v", d.CallTimeout.Round(time.Second))
	}
	return nil
}

// handler queues the UID of each object that changes.
func handler(queue *kit.Queue) cache.ResourceEventHandler {
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
