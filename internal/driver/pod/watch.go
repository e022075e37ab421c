// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"cloudnative.tw/drover/internal/driver"
)

// Watch implements driver.Driver: it follows the pods and PVCs of this cluster's servers. Informers
// list again after a connection was lost, so that no change is missed.
func (d *Driver) Watch(ctx context.Context) (<-chan types.UID, error) {
	queue := workqueue.NewTyped[types.UID]()
	stop := make(chan struct{})
	factory := informers.NewSharedInformerFactoryWithOptions(d.Client, 0, informers.WithTweakListOptions(func(o *v1.ListOptions) { o.LabelSelector = d.selector() }))
	for _, informer := range []cache.SharedIndexInformer{
		factory.Core().V1().Pods().Informer(), factory.Core().V1().PersistentVolumeClaims().Informer(),
	} {
		if _, err := informer.AddEventHandler(handler(queue)); err != nil {
			return nil, err
		}
	}
	factory.Start(stop)
	if err := d.waitForSync(ctx, factory); err != nil {
		close(stop)
		return nil, err
	}
	uids := make(chan types.UID)
	go func() {
		defer close(uids)
		defer factory.Shutdown()
		defer close(stop)
		deliver(ctx, queue, uids)
	}()
	return uids, nil
}

// waitForSync waits for the first lists, within the time of a call.
func (d *Driver) waitForSync(ctx context.Context, factory informers.SharedInformerFactory) error {
	ctx, cancel := context.WithTimeout(ctx, d.CallTimeout)
	defer cancel()
	for kind, synced := range factory.WaitForCacheSync(ctx.Done()) {
		if !synced {
			return driver.Errorf(driver.ErrUnavailable, "the cluster did not list %v within %v", kind, d.CallTimeout.Round(time.Second))
		}
	}
	return nil
}

// handler queues the UID of each object that changes.
func handler(queue workqueue.TypedInterface[types.UID]) cache.ResourceEventHandler {
	add := func(o any) {
		if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = unknown.Obj
		}
		if m, ok := o.(v1.Object); ok {
			queue.Add(types.UID(m.GetLabels()[LabelUID]))
		}
	}
	return cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, o any) { add(o) }, DeleteFunc: add}
}

// deliver sends what is queued until ctx ends.
func deliver(ctx context.Context, queue workqueue.TypedInterface[types.UID], uids chan<- types.UID) {
	defer context.AfterFunc(ctx, queue.ShutDown)()
	for {
		uid, shutDown := queue.Get()
		if shutDown {
			return
		}
		queue.Done(uid) // now, so that an event during the sending queues it again
		select {
		case uids <- uid:
		case <-ctx.Done():
			return
		}
	}
}
