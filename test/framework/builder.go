// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package framework

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	testingclock "k8s.io/utils/clock/testing"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/assert"
)

// VMBuilder makes VirtualMachines for tests.
type VMBuilder struct{ vm api.VirtualMachine }

// NewVM returns a builder of a valid VirtualMachine in namespace default that is switched
// on and has two CPUs and 4 GB.
func NewVM(name string) *VMBuilder {
	b := &VMBuilder{}
	b.vm.Name, b.vm.Namespace = name, metav1.NamespaceDefault
	b.vm.Spec.Resource = corev1.ResourceList{
		api.ResourceCPU: resource.MustParse("2"), api.ResourceMemory: resource.MustParse("4G"),
	}
	return b
}

// Obj returns a copy of the VirtualMachine that was built.
func (b *VMBuilder) Obj() *api.VirtualMachine { return b.vm.DeepCopy() }

// Namespace sets metadata.namespace.
func (b *VMBuilder) Namespace(ns string) *VMBuilder { b.vm.Namespace = ns; return b }

// UID sets metadata.uid.
func (b *VMBuilder) UID(uid string) *VMBuilder { b.vm.UID = types.UID(uid); return b }

// Generation sets metadata.generation.
func (b *VMBuilder) Generation(n int64) *VMBuilder { b.vm.Generation = n; return b }

// DeletionTimestamp sets metadata.deletionTimestamp.
func (b *VMBuilder) DeletionTimestamp(deleted time.Time) *VMBuilder {
	b.vm.DeletionTimestamp = &metav1.Time{Time: deleted}
	return b
}

// Bound adds the finalizer and the binding annotation.
func (b *VMBuilder) Bound(binding string) *VMBuilder {
	b.vm.Finalizers = append(b.vm.Finalizers, api.FinalizerServer)
	metav1.SetMetaDataAnnotation(&b.vm.ObjectMeta, api.AnnotationBound, binding)
	return b
}

// Action sets spec.action.
func (b *VMBuilder) Action(a api.Action) *VMBuilder { b.vm.Spec.Action = a; return b }

// Resource sets one key of spec.resource.
func (b *VMBuilder) Resource(name corev1.ResourceName, quantity string) *VMBuilder {
	b.vm.Spec.Resource[name] = resource.MustParse(quantity)
	return b
}

// Driver sets spec.driver.
func (b *VMBuilder) Driver(name string) *VMBuilder { b.vm.Spec.Driver = name; return b }

// Image sets spec.image.source.
func (b *VMBuilder) Image(source string) *VMBuilder {
	b.vm.Spec.Image = &api.Image{Source: source}
	return b
}

// Port adds to spec.ports.
func (b *VMBuilder) Port(name string, port, hostPort int32) *VMBuilder {
	b.vm.Spec.Ports = append(b.vm.Spec.Ports, api.Port{Name: name, Protocol: api.ProtocolTCP, Port: port, HostPort: hostPort})
	return b
}

// RestartPolicy sets spec.restartPolicy.
func (b *VMBuilder) RestartPolicy(p api.RestartPolicy) *VMBuilder {
	b.vm.Spec.RestartPolicy = p
	return b
}

// RestartedAt sets spec.restartedAt.
func (b *VMBuilder) RestartedAt(restarted time.Time) *VMBuilder {
	b.vm.Spec.RestartedAt = &metav1.Time{Time: restarted}
	return b
}

// GracePeriod sets spec.shutdownGracePeriodSeconds.
func (b *VMBuilder) GracePeriod(seconds int64) *VMBuilder {
	b.vm.Spec.ShutdownGracePeriodSeconds = &seconds
	return b
}

// DeletionPolicy sets spec.deletionPolicy.
func (b *VMBuilder) DeletionPolicy(p api.DeletionPolicy) *VMBuilder {
	b.vm.Spec.DeletionPolicy = p
	return b
}

// ReadinessProbe sets spec.readinessProbe to a TCP port.
func (b *VMBuilder) ReadinessProbe(port int32) *VMBuilder {
	b.vm.Spec.ReadinessProbe = &api.Probe{TCPSocket: api.TCPSocket{Port: port}, PeriodSeconds: 1, TimeoutSeconds: 1}
	return b
}

// UserDataSecret sets spec.userData to a key of a Secret.
func (b *VMBuilder) UserDataSecret(name, key string) *VMBuilder {
	b.vm.Spec.UserData = &api.DataSource{SecretKeyRef: &api.SecretKeyRef{Name: name, Key: key}}
	return b
}

// Meta changes the metadata by a function.
func (b *VMBuilder) Meta(change func(*metav1.ObjectMeta)) *VMBuilder {
	change(&b.vm.ObjectMeta)
	return b
}

// Spec changes the spec by a function.
func (b *VMBuilder) Spec(change func(*api.VirtualMachineSpec)) *VMBuilder {
	change(&b.vm.Spec)
	return b
}

// Status changes the status by a function.
func (b *VMBuilder) Status(change func(*api.VirtualMachineStatus)) *VMBuilder {
	change(&b.vm.Status)
	return b
}

// NewFakeClock returns a clock that stands still until the test moves it.
func NewFakeClock(now time.Time) *testingclock.FakeClock { return testingclock.NewFakeClock(now) }

// VMCheck returns nil, or an error that describes what is wrong.
type VMCheck func(*api.VirtualMachine) error

// IsActive requires that the VM runs and is ready, and that its status is about the
// latest spec.
func IsActive(vm *api.VirtualMachine) error {
	return errors.Join(
		HasPhase(api.PhaseActive, api.ReasonRunning)(vm),
		HasCondition(api.ConditionReady, metav1.ConditionTrue)(vm),
	)
}

// HasPhase requires phase and reason, for the latest spec.
func HasPhase(phase api.Phase, reason string) VMCheck {
	return func(vm *api.VirtualMachine) error {
		s := &vm.Status
		return assert.ErrorUnless(s.Phase == phase && s.Reason == reason && s.ObservedGeneration == vm.Generation,
			"phase %q, reason %q, generation %d: want %q, %q, %d", s.Phase, s.Reason, s.ObservedGeneration, phase, reason, vm.Generation)
	}
}

// HasCondition requires a condition of the latest spec; with an empty status it must be
// absent.
func HasCondition(kind string, status metav1.ConditionStatus) VMCheck {
	return func(vm *api.VirtualMachine) error {
		c := meta.FindStatusCondition(vm.Status.Conditions, kind)
		switch {
		case c == nil && status == "":
			return nil
		case c == nil || c.Status != status || c.ObservedGeneration != vm.Generation:
			return fmt.Errorf("condition %s is %+v: want %q", kind, c, status)
		}
		return nil
	}
}

// HasMessage requires a text in the status's message.
func HasMessage(text string) VMCheck {
	return func(vm *api.VirtualMachine) error {
		return assert.ErrorUnless(strings.Contains(vm.Status.Message, text), "message %q: want %q in it", vm.Status.Message, text)
	}
}

// HasUsage requires that the server was sampled.
func HasUsage(vm *api.VirtualMachine) error {
	return assert.ErrorUnless(vm.Status.Server != nil && vm.Status.Server.Usage != nil, "the status lacks the usage")
}

// FormatStatus returns a VM's status in readable form.
func FormatStatus(vm *api.VirtualMachine) string {
	text, err := json.Marshal(vm.Status)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// conflictBackoff is for changes while a controller writes the same object: each of its
// writes may cause a conflict, and client-go's default backoff gives up after the fourth.
var conflictBackoff = wait.Backoff{Duration: 20 * time.Millisecond, Factor: 1, Jitter: 1, Steps: 500}

// RetryOnConflict calls change, which reads and writes an object, until there is no conflict.
func RetryOnConflict(change func() error) (err error) {
	_ = retry.RetryOnConflict(conflictBackoff, func() error { // its result lacks errors of a context
		err = change()
		return err
	})
	return err
}

// Sleep waits, and ends early when ctx does.
func Sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
