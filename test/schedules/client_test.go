// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package schedules

import (
	"context"
	"fmt"
	"reflect"
	"strconv"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// request sends a request to the API server.
func request[T any](ctx context.Context, p *process, k kind, name string, do func(s *apiServer) (T, error)) (T, error) {
	return call(ctx, p, k, p.name+" "+name, func() (T, error) { return do(p.environment.api) })
}

// copyInto copies an answer into the caller's object.
func copyInto(from, to client.Object) {
	reflect.ValueOf(to).Elem().Set(reflect.ValueOf(from.DeepCopyObject()).Elem())
}

// liveReader reads VirtualMachines from the API, not from the cache.
type liveReader struct{ *process }

// Get implements client.Reader.
func (r liveReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	have, err := request(ctx, r.process, kindRead, "GET vm "+key.Name, func(s *apiServer) (client.Object, error) {
		return s.get(resourceKey{vms, key})
	})
	if err == nil {
		copyInto(have, object)
	}
	return err
}

// List implements client.Reader.
func (r liveReader) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	have, err := request(ctx, r.process, kindRead, "LIST vms", func(s *apiServer) (*api.VirtualMachineList, error) {
		return listVMs(s, s.version), nil
	})
	if err == nil {
		*list.(*api.VirtualMachineList) = *have //nolint:forcetypeassert // there are no other lists
	}
	return err
}

func listVMs(s *apiServer, at uint64) *api.VirtualMachineList {
	list := &api.VirtualMachineList{}
	list.ResourceVersion = strconv.FormatUint(at, 10)
	for _, object := range s.list(vms, at) {
		list.Items = append(list.Items, *object.DeepCopyObject().(*api.VirtualMachine)) //nolint:forcetypeassert // of this resource
	}
	return list
}

// vmClient reads VirtualMachines from the cache and writes them to the API.
type vmClient struct {
	client.Client // nil: other methods are not used

	process *process
	cache   client.Reader
}

// Get implements client.Client.
func (c vmClient) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return c.cache.Get(ctx, key, object, options...)
}

// List implements client.Client.
func (c vmClient) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return c.cache.List(ctx, list, options...)
}

// Patch implements client.Client.
func (c vmClient) Patch(ctx context.Context, object client.Object, patch client.Patch, _ ...client.PatchOption) error {
	content, err := patch.Data(object)
	if err != nil {
		return err
	}
	have, err := request(ctx, c.process, kindWrite, "PATCH vm "+object.GetName(), func(s *apiServer) (client.Object, error) {
		return s.mergePatch(keyOf(object), content)
	})
	if err == nil {
		copyInto(have, object)
	}
	return err
}

// Status implements client.Client.
func (c vmClient) Status() client.SubResourceWriter { return statusWriter{process: c.process} }

// statusWriter writes the status of VirtualMachines.
type statusWriter struct {
	client.SubResourceWriter // nil: other methods are not used

	process *process
}

// Update implements client.SubResourceWriter.
func (w statusWriter) Update(ctx context.Context, object client.Object, _ ...client.SubResourceUpdateOption) error {
	sent := normalize(object)
	have, err := request(ctx, w.process, kindWrite, "UPDATE vm status "+object.GetName(), func(s *apiServer) (client.Object, error) {
		before := s.objects[keyOf(sent)]
		stored, err := s.update(sent, true)
		if err == nil {
			w.process.environment.judge.statusWritten(w.process, before.(*api.VirtualMachine), stored.(*api.VirtualMachine)) //nolint:forcetypeassert // of this resource
		}
		return stored, err
	})
	if err == nil {
		copyInto(have, object)
	}
	return err
}

// vmLister lists and watches VirtualMachines for the cache.
type vmLister struct{ *process }

// IsWatchListSemanticsUnSupported makes the reflector list before it watches.
func (vmLister) IsWatchListSemanticsUnSupported() bool { return true }

// List implements cache.Lister.
func (l vmLister) List(o metav1.ListOptions) (runtime.Object, error) {
	return l.ListWithContext(l.ctx, o)
}

// Watch implements cache.Watcher.
func (l vmLister) Watch(o metav1.ListOptions) (watch.Interface, error) {
	return l.WatchWithContext(l.ctx, o)
}

// ListWithContext implements cache.ListerWithContext. If the request allows any version, the
// list may be old.
func (l vmLister) ListWithContext(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
	if l.isDead() { // its manager must start before it can stop
		return &api.VirtualMachineList{ListMeta: metav1.ListMeta{ResourceVersion: "1"}}, nil
	}
	return request(ctx, l.process, kindRead, "LIST vms for the cache from "+o.ResourceVersion, func(s *apiServer) (runtime.Object, error) {
		at := s.version
		if o.ResourceVersion == "0" {
			at -= l.environment.chooseLag(at - s.first)
		}
		return listVMs(s, at), nil
	})
}

// WatchWithContext implements cache.WatcherWithContext.
func (l vmLister) WatchWithContext(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	if l.isDead() {
		return &watcher{process: l.process, out: make(chan watch.Event)}, nil
	}
	return openWatch(ctx, l.process, "WATCH vms", resourceKey{resource: vms}, o)
}

func openWatch(ctx context.Context, p *process, name string, key resourceKey, o metav1.ListOptions) (watch.Interface, error) {
	from, err := strconv.ParseUint(o.ResourceVersion, 10, 64)
	if err != nil {
		return nil, err
	}
	w, err := request(ctx, p, kindRead, name, func(s *apiServer) (*watcher, error) {
		w, err := s.watch(p, name, key, from)
		if err == nil {
			p.environment.watchers = append(p.environment.watchers, w)
		}
		return w, err
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

// leaseClient reads and writes the Leases of a namespace.
type leaseClient struct {
	*process

	namespace string
}

func (c leaseClient) key(name string) resourceKey {
	return resourceKey{leases, types.NamespacedName{Namespace: c.namespace, Name: name}}
}

func (c leaseClient) send(ctx context.Context, k kind, verb, name string, do func(s *apiServer) (client.Object, error)) (*coordinationv1.Lease, error) {
	have, err := request(ctx, c.process, k, verb+" lease "+name+callerOf("keepClaim"), do)
	if err != nil {
		return nil, err
	}
	return have.(*coordinationv1.Lease).DeepCopy(), nil //nolint:forcetypeassert // of this resource
}

// Get implements leader.Leases.
func (c leaseClient) Get(ctx context.Context, name string, _ metav1.GetOptions) (*coordinationv1.Lease, error) {
	return c.send(ctx, kindRead, "GET", name, func(s *apiServer) (client.Object, error) { return s.get(c.key(name)) })
}

// List implements leader.Leases.
func (c leaseClient) List(ctx context.Context, o metav1.ListOptions) (*coordinationv1.LeaseList, error) {
	name := nameSelected(o)
	return request(ctx, c.process, kindRead, "LIST lease "+name, func(s *apiServer) (*coordinationv1.LeaseList, error) {
		list := &coordinationv1.LeaseList{}
		list.ResourceVersion = strconv.FormatUint(s.version, 10)
		if have, err := s.get(c.key(name)); err == nil {
			list.Items = append(list.Items, *have.DeepCopyObject().(*coordinationv1.Lease)) //nolint:forcetypeassert // of this resource
		}
		return list, nil
	})
}

func nameSelected(o metav1.ListOptions) string {
	selector, err := fields.ParseSelector(o.FieldSelector)
	if err != nil {
		panic(fmt.Sprintf("the selector %q: %v", o.FieldSelector, err))
	}
	name, _ := selector.RequiresExactMatch(metav1.ObjectNameField)
	return name
}

// Watch implements leader.Leases.
func (c leaseClient) Watch(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
	name := nameSelected(o)
	return openWatch(ctx, c.process, "WATCH lease "+name, c.key(name), o)
}

// Create implements leader.Leases.
func (c leaseClient) Create(ctx context.Context, lease *coordinationv1.Lease, _ metav1.CreateOptions) (*coordinationv1.Lease, error) {
	sent := lease.DeepCopy()
	return c.write(ctx, "CREATE", lease.Name, func(s *apiServer) (client.Object, error) { return s.create(sent) })
}

// Update implements leader.Leases.
func (c leaseClient) Update(ctx context.Context, lease *coordinationv1.Lease, _ metav1.UpdateOptions) (*coordinationv1.Lease, error) {
	sent := lease.DeepCopy()
	return c.write(ctx, "UPDATE", lease.Name, func(s *apiServer) (client.Object, error) { return s.update(sent, false) })
}

// write writes a Lease, and reports to the judge when the request was sent.
func (c leaseClient) write(ctx context.Context, verb, name string, do func(s *apiServer) (client.Object, error)) (*coordinationv1.Lease, error) {
	sent := time.Now()
	return c.send(ctx, kindWrite, verb, name, func(s *apiServer) (client.Object, error) {
		before := holderOf(s.objects[c.key(name)])
		stored, err := do(s)
		if err == nil && name == leaseName {
			c.environment.judge.leaseWritten(c.process, before, holderOf(stored), sent)
		}
		return stored, err
	})
}

// holderOf returns the holder of a Lease, or "".
func holderOf(object client.Object) string {
	lease, ok := object.(*coordinationv1.Lease)
	if !ok || lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}
