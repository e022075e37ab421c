// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package vmtest

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testingclock "k8s.io/utils/clock/testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
)

// Builder makes VirtualMachines for tests.
type Builder struct{ vm api.VirtualMachine }

// VM begins a valid VirtualMachine in namespace default: two CPUs, 4 GB, on.
func VM(name string) *Builder {
	b := &Builder{}
	b.vm.Name, b.vm.Namespace = name, metav1.NamespaceDefault
	b.vm.Spec.Resource = corev1.ResourceList{
		api.ResourceCPU: resource.MustParse("2"), api.ResourceMemory: resource.MustParse("4G"),
	}
	return b
}

// Obj returns a copy of what was built.
func (b *Builder) Obj() *api.VirtualMachine { return b.vm.DeepCopy() }

// Namespace sets metadata.namespace.
func (b *Builder) Namespace(ns string) *Builder { b.vm.Namespace = ns; return b }

// UID sets metadata.uid.
func (b *Builder) UID(uid string) *Builder { b.vm.UID = types.UID(uid); return b }

// Generation sets metadata.generation.
func (b *Builder) Generation(n int64) *Builder { b.vm.Generation = n; return b }

// Deleted sets metadata.deletionTimestamp.
func (b *Builder) Deleted(at time.Time) *Builder {
	b.vm.DeletionTimestamp = &metav1.Time{Time: at}
	return b
}

// Bound puts the finalizer and the binding on.
func (b *Builder) Bound(to string) *Builder {
	b.vm.Finalizers = append(b.vm.Finalizers, api.FinalizerServer)
	metav1.SetMetaDataAnnotation(&b.vm.ObjectMeta, api.AnnotationBound, to)
	return b
}

// Action sets spec.action.
func (b *Builder) Action(a api.Action) *Builder { b.vm.Spec.Action = a; return b }

// Resource sets one key of spec.resource.
func (b *Builder) Resource(name corev1.ResourceName, quantity string) *Builder {
	b.vm.Spec.Resource[name] = resource.MustParse(quantity)
	return b
}

// Driver sets spec.driver.
func (b *Builder) Driver(name string) *Builder { b.vm.Spec.Driver = name; return b }

// Image sets spec.image.source.
func (b *Builder) Image(source string) *Builder {
	b.vm.Spec.Image = &api.Image{Source: source}
	return b
}

// Port adds to spec.ports.
func (b *Builder) Port(name string, port, hostPort int32) *Builder {
	b.vm.Spec.Ports = append(b.vm.Spec.Ports, api.Port{Name: name, Protocol: api.ProtocolTCP, Port: port, HostPort: hostPort})
	return b
}

// RestartPolicy sets spec.restartPolicy.
func (b *Builder) RestartPolicy(p api.RestartPolicy) *Builder { b.vm.Spec.RestartPolicy = p; return b }

// RestartedAt sets spec.restartedAt.
func (b *Builder) RestartedAt(at time.Time) *Builder {
	b.vm.Spec.RestartedAt = &metav1.Time{Time: at}
	return b
}

// Grace sets spec.shutdownGracePeriodSeconds.
func (b *Builder) Grace(seconds int64) *Builder {
	b.vm.Spec.ShutdownGracePeriodSeconds = &seconds
	return b
}

// DeletionPolicy sets spec.deletionPolicy.
func (b *Builder) DeletionPolicy(p api.DeletionPolicy) *Builder {
	b.vm.Spec.DeletionPolicy = p
	return b
}

// Probe sets spec.readinessProbe to a TCP port.
func (b *Builder) Probe(port int32) *Builder {
	b.vm.Spec.ReadinessProbe = &api.Probe{TCPSocket: api.TCPSocket{Port: port}, PeriodSeconds: 1, TimeoutSeconds: 1}
	return b
}

// UserDataSecret sets spec.userData to a key of a Secret.
func (b *Builder) UserDataSecret(name, key string) *Builder {
	b.vm.Spec.UserData = &api.DataSource{SecretKeyRef: &api.SecretKeyRef{Name: name, Key: key}}
	return b
}

// Meta changes the metadata by hand.
func (b *Builder) Meta(change func(*metav1.ObjectMeta)) *Builder {
	change(&b.vm.ObjectMeta)
	return b
}

// Spec changes the spec by hand.
func (b *Builder) Spec(change func(*api.VirtualMachineSpec)) *Builder {
	change(&b.vm.Spec)
	return b
}

// Status changes the status by hand.
func (b *Builder) Status(change func(*api.VirtualMachineStatus)) *Builder {
	change(&b.vm.Status)
	return b
}

// Clock is a clock that stands still until it is moved by hand.
func Clock(at time.Time) *testingclock.FakeClock { return testingclock.NewFakeClock(at) }
