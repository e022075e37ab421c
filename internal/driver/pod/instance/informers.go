// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"

	"cloudnative.tw/drover/internal/driver/pod/objects"
)

const (
	// freshTimeout is how long a list waits for informers that are behind, before it reads live.
	freshTimeout = 500 * time.Millisecond
	freshPeriod  = 5 * time.Millisecond
	// liveListPeriod is the longest time between two complete lists that are live.
	liveListPeriod = 5 * time.Minute
	// indexUID is the index of objects by the UID of the VirtualMachine.
	indexUID = "uid"
)

// Informers have the objects of all servers as watches deliver them, without what nothing is decided
// from. Lists are served from them as long as they are as new as what this process has last read or
// written; each change is decided from a live read.
type Informers struct{ Pods, Claims cache.SharedIndexInformer }

// NewInformers returns the informers of the objects that the reader reads.
func (r *Reader) NewInformers() (*Informers, error) {
	pods, claims := r.Client.Pods(metav1.NamespaceAll), r.Client.PersistentVolumeClaims(metav1.NamespaceAll)
	i := &Informers{
		Pods: newInformer(&corev1.Pod{}, &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return pods.List(ctx, latest(r.selected(o)))
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return pods.Watch(ctx, r.selected(o))
			},
		}),
		Claims: newInformer(&corev1.PersistentVolumeClaim{}, &cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return claims.List(ctx, latest(r.selected(o)))
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				return claims.Watch(ctx, r.selected(o))
			},
		}),
	}
	if err := i.Pods.SetTransform(strip); err != nil {
		return nil, err
	}
	return i, i.Claims.SetTransform(strip)
}

func newInformer(of runtime.Object, lw cache.ListerWatcher) cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(lw, of, 0, cache.Indexers{indexUID: uidOf})
}

// selected returns options that select the objects of this cluster's servers.
func (r *Reader) selected(o metav1.ListOptions) metav1.ListOptions {
	o.LabelSelector = objects.Selector(r.ClusterID)
	return o
}

// latest returns options that list what is there now, where an informer would begin with what an API
// server that lags had at some time.
func latest(o metav1.ListOptions) metav1.ListOptions {
	if o.ResourceVersion == "0" {
		o.ResourceVersion = ""
	}
	return o
}

func uidOf(o any) ([]string, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, nil
	}
	return []string{m.GetLabels()[objects.LabelUID]}, nil
}

// strip drops what describes no server. The API server refuses to write such a pod back.
func strip(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		if !isTerminal(o.Status.Phase) {
			o.ManagedFields = nil
		}
		o.ManagedFields = slices.DeleteFunc(o.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return !isPhaseOfKubelet(e) })
		delete(o.Annotations, objects.AnnotationMachine)
		o.Spec = stripSpec(&o.Spec)
	case *corev1.PersistentVolumeClaim:
		o.ManagedFields = nil
	}
	return o, nil
}

func stripSpec(s *corev1.PodSpec) corev1.PodSpec {
	kept := corev1.PodSpec{
		NodeName: s.NodeName, SchedulingGates: s.SchedulingGates,
		InitContainers: stripContainers(s.InitContainers), Containers: stripContainers(s.Containers),
		Volumes: objects.DescribedVolumes(s.Volumes),
	}
	for _, c := range s.EphemeralContainers {
		kept.EphemeralContainers = append(kept.EphemeralContainers, corev1.EphemeralContainer{
			EphemeralContainerCommon: corev1.EphemeralContainerCommon{Name: c.Name},
		})
	}
	return kept
}

func stripContainers(all []corev1.Container) (kept []corev1.Container) {
	for _, c := range all {
		kept = append(kept, corev1.Container{Name: c.Name, Ports: c.Ports})
	}
	return kept
}

// byUID returns the objects of servers from an informer, all if no UID is given.
func byUID[T any](informer cache.SharedIndexInformer, uids []types.UID) (all []T) {
	var found []any
	if len(uids) == 0 {
		found = informer.GetIndexer().List()
	}
	for _, uid := range uids {
		of, _ := informer.GetIndexer().ByIndex(indexUID, string(uid)) // only an unknown index is an error
		found = append(found, of...)
	}
	for _, o := range found {
		if o, ok := o.(T); ok {
			all = append(all, o)
		}
	}
	return all
}

// KnownPods returns the pods of servers as the informers have them, all if no UID is given. ok is
// false if no watch is open. Callers must not change them.
func (r *Reader) KnownPods(uids ...types.UID) (pods []*corev1.Pod, ok bool) {
	watched := r.Watched.Load()
	if watched == nil {
		return nil, false
	}
	return byUID[*corev1.Pod](watched.Pods, uids), true
}

// freshInformers returns the informers once they have all that this process has read and written
// before the call. It returns nil if they are too far behind, or no watch is open.
func (r *Reader) freshInformers(ctx context.Context) *Informers {
	watched := r.Watched.Load()
	if watched == nil {
		return nil
	}
	pods, claims := r.pods.Load(), r.claims.Load()
	err := wait.PollUntilContextTimeout(ctx, freshPeriod, freshTimeout, true, func(context.Context) (bool, error) {
		return isAsNew(watched.Pods, pods) && isAsNew(watched.Claims, claims), nil
	})
	if err != nil {
		return nil
	}
	return watched
}

// isAsNew reports whether the store of an informer has the state of a version.
func isAsNew(informer cache.SharedIndexInformer, version uint64) bool {
	has, err := strconv.ParseUint(informer.GetIndexer().LastStoreSyncResourceVersion(), 10, 64)
	return err == nil && has >= version
}

// Note takes the version of an object that was just read live or written. Lists wait until the
// informers have it.
func (i *Instance) Note(o metav1.Object) { i.reader.note(o) }

func (r *Reader) note(o metav1.Object) {
	last := &r.pods
	if _, isClaim := o.(*corev1.PersistentVolumeClaim); isClaim {
		last = &r.claims
	}
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		version = math.MaxUint64 // nothing is known to be as new
	}
	raise(last, version)
}

func raise(last *atomic.Uint64, version uint64) {
	for {
		has := last.Load()
		if version <= has || last.CompareAndSwap(has, version) {
			return
		}
	}
}
