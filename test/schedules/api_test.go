// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// resourceKey identifies an object in the API.
type resourceKey struct {
	resource schema.GroupResource
	name     types.NamespacedName
}

var (
	vms    = api.Resource("virtualmachines")
	leases = coordinationv1.Resource("leases")
)

// keyOf returns the key of an object.
func keyOf(object client.Object) resourceKey {
	key := resourceKey{vms, client.ObjectKeyFromObject(object)}
	if _, ok := object.(*coordinationv1.Lease); ok {
		key.resource = leases
	}
	return key
}

// change is an entry of the API server's log.
type change struct {
	key     resourceKey
	kind    watch.EventType
	object  client.Object
	version uint64
}

// apiServer simulates an API server in memory: versions, finalizers, generations, the status
// subresource, and a log that lists and watches may read with a delay. Only the scheduler's
// goroutine uses it.
type apiServer struct {
	objects map[resourceKey]client.Object
	log     []change
	// first is the version of the log's first entry; older watches have expired.
	first, version uint64
	uids           int
	// writes counts the changes of objects, except Leases.
	writes int
}

const firstVersion = 1000

func newAPIServer() *apiServer {
	return &apiServer{objects: map[resourceKey]client.Object{}, first: firstVersion, version: firstVersion}
}

// normalize returns a copy of an object after encoding and decoding it as JSON.
func normalize[T client.Object](object T) T {
	content, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	next := reflect.New(reflect.TypeOf(object).Elem()).Interface()
	if err := json.Unmarshal(content, next); err != nil {
		panic(err)
	}
	return next.(T) //nolint:forcetypeassert // it has type T
}

// store logs a change and returns the object as stored.
func (s *apiServer) store(kind watch.EventType, object client.Object) client.Object {
	s.version++
	object = normalize(object)
	object.SetResourceVersion(strconv.FormatUint(s.version, 10))
	key := keyOf(object)
	if key.resource != leases {
		s.writes++
	}
	if kind == watch.Deleted {
		delete(s.objects, key)
	} else {
		s.objects[key] = object
	}
	s.log = append(s.log, change{key, kind, object, s.version})
	return object
}

func (s *apiServer) get(key resourceKey) (client.Object, error) {
	have := s.objects[key]
	if have == nil {
		return nil, apierrors.NewNotFound(key.resource, key.name.Name)
	}
	return have, nil
}

func (s *apiServer) create(object client.Object) (client.Object, error) {
	key := keyOf(object)
	if s.objects[key] != nil {
		return nil, apierrors.NewAlreadyExists(key.resource, key.name.Name)
	}
	s.uids++
	next := normalize(object)
	next.SetUID(types.UID(fmt.Sprintf("%08d-0000-4000-8000-000000000000", s.uids)))
	next.SetGeneration(1)
	next.SetCreationTimestamp(metav1.NewTime(time.Now().Truncate(time.Second)))
	return s.store(watch.Added, next), nil
}

// update replaces an object. Of a VirtualMachine it replaces only the status, or everything else.
func (s *apiServer) update(object client.Object, status bool) (client.Object, error) {
	have, err := s.checkVersion(object)
	if err != nil {
		return nil, err
	}
	next := object.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy
	if vm, ok := next.(*api.VirtualMachine); ok {
		old := have.(*api.VirtualMachine) //nolint:forcetypeassert // of the same resource
		if status {
			kept := old.DeepCopy()
			kept.Status = vm.Status
			next = kept
		} else {
			vm.Status, vm.Generation = old.Status, old.Generation
			vm.DeletionTimestamp, vm.CreationTimestamp, vm.UID = old.DeletionTimestamp, old.CreationTimestamp, old.UID
			if !reflect.DeepEqual(normalize(vm).Spec, old.Spec) {
				vm.Generation++
			}
		}
	}
	return s.storeUpdate(have, next), nil
}

func (s *apiServer) checkVersion(object client.Object) (client.Object, error) {
	key := keyOf(object)
	have, err := s.get(key)
	switch {
	case err != nil:
		return nil, err
	case object.GetUID() != "" && object.GetUID() != have.GetUID():
		return nil, apierrors.NewConflict(key.resource, key.name.Name, fmt.Errorf("the UID in the precondition is %s", object.GetUID()))
	case object.GetResourceVersion() != "" && object.GetResourceVersion() != have.GetResourceVersion():
		return nil, apierrors.NewConflict(key.resource, key.name.Name, errors.New("the object has been modified"))
	}
	return have, nil
}

// storeUpdate stores a changed object. It removes an object that is being deleted and lacks finalizers.
func (s *apiServer) storeUpdate(have, next client.Object) client.Object {
	next.SetResourceVersion(have.GetResourceVersion())
	if reflect.DeepEqual(normalize(next), have) {
		return have
	}
	if next.GetDeletionTimestamp() != nil && len(next.GetFinalizers()) == 0 {
		return s.store(watch.Deleted, next)
	}
	return s.store(watch.Modified, next)
}

// mergePatch applies a JSON merge patch that removes nothing to a VirtualMachine, except to
// its status.
func (s *apiServer) mergePatch(key resourceKey, patch []byte) (client.Object, error) {
	have, err := s.get(key)
	if err != nil {
		return nil, err
	}
	next := have.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy
	if err := json.Unmarshal(patch, next); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return s.update(next, false)
}

// delete removes an object, or sets its deletionTimestamp if it has finalizers.
func (s *apiServer) delete(key resourceKey) error {
	have, err := s.get(key)
	if err != nil {
		return err
	}
	next := have.DeepCopyObject().(client.Object) //nolint:forcetypeassert // a copy
	switch {
	case have.GetDeletionTimestamp() != nil:
	case len(have.GetFinalizers()) == 0:
		s.store(watch.Deleted, next)
	default:
		next.SetDeletionTimestamp(new(metav1.NewTime(time.Now().Truncate(time.Second))))
		next.SetGeneration(next.GetGeneration() + 1)
		s.store(watch.Modified, next)
	}
	return nil
}

// list returns the objects of a resource at a version.
func (s *apiServer) list(resource schema.GroupResource, at uint64) []client.Object {
	state := map[resourceKey]client.Object{}
	for _, c := range s.log {
		if c.version > at || c.key.resource != resource {
			continue
		}
		if c.kind == watch.Deleted {
			delete(state, c.key)
		} else {
			state[c.key] = c.object
		}
	}
	all := make([]client.Object, 0, len(state))
	for _, object := range state {
		all = append(all, object)
	}
	slices.SortFunc(all, func(a, b client.Object) int {
		return slices.Compare([]string{a.GetNamespace(), a.GetName()}, []string{b.GetNamespace(), b.GetName()})
	})
	return all
}

// watcher is a watch of a resource, which follows the log.
type watcher struct {
	process *process
	name    string
	key     resourceKey // an empty name means all names
	next    int         // index into the log
	out     chan watch.Event
	ending  bool
	closed  bool
	stopped atomic.Bool // by the client
	// version is the version of the next event, and notUntil the end of its delay.
	version  uint64
	notUntil time.Time
}

// ResultChan implements watch.Interface.
func (w *watcher) ResultChan() <-chan watch.Event { return w.out }

// Stop implements watch.Interface.
func (w *watcher) Stop() {
	w.process.environment.gate.mu.Lock()
	defer w.process.environment.gate.mu.Unlock()
	w.stopped.Store(true)
}

func (w *watcher) follows(c change) bool {
	return c.key.resource == w.key.resource &&
		(w.key.name.Namespace == "" || c.key.name.Namespace == w.key.name.Namespace) && (w.key.name.Name == "" || c.key.name.Name == w.key.name.Name)
}

// watch opens a watch from a version on.
func (s *apiServer) watch(p *process, name string, key resourceKey, from uint64) (*watcher, error) {
	if from < s.first {
		return nil, apierrors.NewResourceExpired("too old resource version")
	}
	w := &watcher{process: p, name: name, key: key, out: make(chan watch.Event)}
	for w.next < len(s.log) && s.log[w.next].version <= from {
		w.next++
	}
	return w, nil
}

// skip advances a watch to its next event and returns it, if there is one.
func (s *apiServer) skip(w *watcher) (event change, ok bool) {
	for ; w.next < len(s.log); w.next++ {
		if w.follows(s.log[w.next]) {
			return s.log[w.next], true
		}
	}
	return change{}, false
}
