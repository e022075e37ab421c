// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"

	"cloudnative.tw/drover/internal/driver"
)

// Watch implements driver.Driver: it follows the pods and PVCs of this cluster's servers. Informers
// list again after a connection was lost, so that no change is missed.
func (d *Driver) Watch(ctx context.Context) (<-chan types.UID, error) {
	queue := workqueue.NewTyped[types.UID]()
	pods := d.podInformer()
	running, stop := context.WithCancel(ctx)
	var following sync.WaitGroup
	var synced []cache.InformerSynced
	for _, informer := range []cache.SharedIndexInformer{pods, d.claimInformer()} {
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
	indexer, uids := pods.GetIndexer(), make(chan types.UID)
	d.pods.Store(&indexer)
	d.watches.Store(queue, true)
	following.Go(func() { d.sampleFirst(running) })
	go func() {
		defer close(uids)
		defer following.Wait()
		defer stop()
		defer d.pods.CompareAndSwap(&indexer, nil)
		defer d.watches.Delete(queue)
		deliver(ctx, queue, uids)
	}()
	return uids, nil
}

func (d *Driver) podInformer() cache.SharedIndexInformer {
	pods := d.Client.Pods(metav1.NamespaceAll)
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return pods.List(ctx, d.selected(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return pods.Watch(ctx, d.selected(o))
		},
	}, &corev1.Pod{}, 0, cache.Indexers{indexUID: uidOf})
}

func (d *Driver) claimInformer() cache.SharedIndexInformer {
	claims := d.Client.PersistentVolumeClaims(metav1.NamespaceAll)
	return cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return claims.List(ctx, d.selected(o))
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return claims.Watch(ctx, d.selected(o))
		},
	}, &corev1.PersistentVolumeClaim{}, 0, nil)
}

// selected returns options that select the objects of this cluster's servers.
func (d *Driver) selected(o metav1.ListOptions) metav1.ListOptions {
	o.LabelSelector = d.selector()
	return o
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
func handler(queue workqueue.TypedInterface[types.UID]) cache.ResourceEventHandler {
	add := func(o any) {
		if unknown, ok := o.(cache.DeletedFinalStateUnknown); ok {
			o = unknown.Obj
		}
		if m, ok := o.(metav1.Object); ok {
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
