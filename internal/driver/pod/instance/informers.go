// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package instance

import (
	"context"
	"errors"
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

	"cloudnative.tw/drover/internal/driver/pod/ends"
	"cloudnative.tw/drover/internal/driver/pod/objects"
)

const (
	// freshTimeout limits how long a list waits for informers that are out of date. Then it reads from the API server.
	freshTimeout = 500 * time.Millisecond
	freshPeriod  = 5 * time.Millisecond
	// liveListPeriod is the longest time between two complete live lists.
	liveListPeriod = 5 * time.Minute
	// indexUID names the index of objects by the UID of the VirtualMachine.
	indexUID = "uid"
)

// Informers have the objects of all servers as watches deliver them, without the fields that decide
// nothing. Lists use them while they are as new as what this process has last read or written. Every
// change is decided from a live read.
type Informers struct{ Pods, Claims cache.SharedIndexInformer }

// NewInformers returns the informers of the objects that the reader reads. notListed is called with each error
// of an informer that has not listed its objects yet.
func (r *Reader) NewInformers(notListed func(error)) (*Informers, error) {
	pods, claims := r.Client.Pods(metav1.NamespaceAll), r.Client.PersistentVolumeClaims(metav1.NamespaceAll)
	podInformer, err := newInformer(r, &corev1.Pod{}, pods.List, pods.Watch)
	claimInformer, claimErr := newInformer(r, &corev1.PersistentVolumeClaim{}, claims.List, claims.Watch)
	err = errors.Join(err, claimErr, reportFailures(podInformer, notListed), reportFailures(claimInformer, notListed))
	return &Informers{Pods: podInformer, Claims: claimInformer}, err
}

// reportFailures passes on the errors of an informer until it has listed its objects. client-go logs later ones.
func reportFailures(informer cache.SharedIndexInformer, notListed func(error)) error {
	return informer.SetWatchErrorHandlerWithContext(func(ctx context.Context, r *cache.Reflector, err error) {
		if informer.HasSynced() {
			cache.DefaultWatchErrorHandler(ctx, r, err)
			return
		}
		notListed(err)
	})
}

// newInformer returns an informer of the objects of one kind that the reader reads. It sends its first
// list without a resource version, because with the default of 0 an API server that lags may return an old
// state.
func newInformer[L runtime.Object](r *Reader, kind runtime.Object, list func(context.Context, metav1.ListOptions) (L, error),
	follow func(context.Context, metav1.ListOptions) (watch.Interface, error),
) (cache.SharedIndexInformer, error) {
	selector := objects.Selector(r.ClusterID)
	informer := cache.NewSharedIndexInformer(&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.LabelSelector = selector; o.ResourceVersion == "0" {
				o.ResourceVersion = ""
			}
			return list(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.LabelSelector = selector
			return follow(ctx, o)
		},
	}, kind, 0, cache.Indexers{indexUID: uidOf})
	return informer, informer.SetTransform(stripObject)
}

// uidOf returns the UID of the VirtualMachine of an object, for the index.
func uidOf(o any) ([]string, error) {
	m, ok := o.(metav1.Object)
	if !ok {
		return nil, nil
	}
	return []string{m.GetLabels()[objects.LabelUID]}, nil
}

// stripObject drops the fields that decide nothing. The API server refuses to write such a pod back.
func stripObject(o any) (any, error) {
	switch o := o.(type) {
	case *corev1.Pod:
		if !ends.IsTerminal(o.Status.Phase) {
			o.ManagedFields = nil
		}
		o.ManagedFields = slices.DeleteFunc(o.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return !ends.IsPhaseOfKubelet(e) })
		delete(o.Annotations, objects.AnnotationMachine)
		o.Spec = stripSpec(&o.Spec)
	case *corev1.PersistentVolumeClaim:
		o.ManagedFields = nil
	}
	return o, nil
}

func stripSpec(s *corev1.PodSpec) corev1.PodSpec {
	kept := corev1.PodSpec{
		NodeName: s.NodeName, SchedulingGates: s.SchedulingGates, ActiveDeadlineSeconds: s.ActiveDeadlineSeconds,
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

// freshInformers returns the informers once they have all versions that this process has read and written
// before the call. It returns nil if they are too far behind, or no watch is open.
func (r *Reader) freshInformers(ctx context.Context) *Informers {
	watched := r.Watched.Load()
	if watched == nil {
		return nil
	}
	pods, claims := r.pods.Load(), r.claims.Load()
	err := wait.PollUntilContextTimeout(ctx, freshPeriod, freshTimeout, true, func(context.Context) (bool, error) {
		return isUpToDate(watched.Pods, pods) && isUpToDate(watched.Claims, claims), nil
	})
	if err != nil {
		return nil
	}
	return watched
}

// isUpToDate reports whether an informer has the state of a version or a later one.
func isUpToDate(informer cache.SharedIndexInformer, version uint64) bool {
	has, err := strconv.ParseUint(informer.GetIndexer().LastStoreSyncResourceVersion(), 10, 64)
	return err == nil && has >= version
}

// Note records the version of an object that was just read live or written. Lists wait until the informers
// have it.
func (i *Instance) Note(o metav1.Object) { i.reader.noteVersion(o) }

// noteVersion records the version of an object: see Instance.Note.
func (r *Reader) noteVersion(o metav1.Object) {
	last := &r.pods
	if _, isClaim := o.(*corev1.PersistentVolumeClaim); isClaim {
		last = &r.claims
	}
	version, err := strconv.ParseUint(o.GetResourceVersion(), 10, 64)
	if err != nil {
		version = math.MaxUint64 // nothing is known to be as new
	}
	raiseVersion(last, version)
}

// raiseVersion sets a version unless it is higher already.
func raiseVersion(last *atomic.Uint64, version uint64) {
	for {
		has := last.Load()
		if version <= has || last.CompareAndSwap(has, version) {
			return
		}
	}
}
