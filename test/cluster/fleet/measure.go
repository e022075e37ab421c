// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/test/bench"
	"cloudnative.tw/drover/test/framework"
)

// The images are never fetched: no kubelet does more than to say that they run.
const (
	machineImage = "drover.test/machine:1"
	guestImage   = "oci://drover.test/guest:1"
)

// course is how objects came and went: the times of all, and the writes of each.
type course struct {
	Up           time.Duration `json:"upNanoseconds"`
	Down         time.Duration `json:"downNanoseconds"`
	VMWritesUp   float64       `json:"vmWritesUp"`
	VMWritesDown float64       `json:"vmWritesDown"`
	PodWrites    float64       `json:"podWrites"`
	RequestsUp   float64       `json:"requestsUp"`
	RequestsDown float64       `json:"requestsDown"`
}

// round are the figures of one number of VMs.
type round struct {
	VMs        int          `json:"vms"`
	Pods       course       `json:"pods"`
	VMsTook    course       `json:"vmsTook"`
	RestWrites float64      `json:"restWrites"`
	More       bench.Sample `json:"moreNanoseconds"`
	Controller bench.Memory `json:"controller"`
	Informers  bench.Memory `json:"informers"`
}

// measureRound measures bare pods, and then as many VMs.
func (e *environment) measureRound(ctx context.Context, count int) (r round, err error) {
	r.VMs = count
	if r.Pods, err = e.measurePods(ctx, count); err != nil {
		return r, fmt.Errorf("bare pods: %w", err)
	}
	before, err := e.readWrites(ctx)
	if err != nil {
		return r, err
	}
	if r.VMsTook.Up, err = timed(fmt.Sprintf("%d VMs are Active", count), func() error { return e.createVMs(ctx, count) }); err != nil {
		return r, err
	}
	if err := e.measureRest(ctx, &r, before); err != nil {
		return r, err
	}
	if r.More, err = e.measureMore(ctx, "more"); err != nil {
		return r, err
	}
	filled, err := e.readWrites(ctx)
	if err != nil {
		return r, err
	}
	if r.VMsTook.Down, err = timed(fmt.Sprintf("%d VMs are gone", count), func() error { return e.deleteVMs(ctx) }); err != nil {
		return r, err
	}
	gone, err := e.readWrites(ctx)
	if err != nil {
		return r, err
	}
	r.VMsTook.VMWritesDown = (gone.vms - filled.vms) / float64(count)
	r.VMsTook.PodWrites += (gone.pods - filled.pods) / float64(count)
	r.VMsTook.RequestsDown = (gone.requests - filled.requests) / float64(count)
	return r, nil
}

// measureRest measures what happens while nothing should, and the memory.
func (e *environment) measureRest(ctx context.Context, r *round, before writes) error {
	if err := bench.AwaitQuiet(ctx, e.controller.PID()); err != nil {
		return err
	}
	up, err := e.readWrites(ctx)
	if err != nil {
		return err
	}
	r.VMsTook.VMWritesUp, r.VMsTook.PodWrites = (up.vms-before.vms)/float64(r.VMs), (up.pods-before.pods)/float64(r.VMs)
	r.VMsTook.RequestsUp = (up.requests - before.requests) / float64(r.VMs)
	if err := bench.Pause(ctx, e.Rest); err != nil {
		return err
	}
	rested, err := e.readWrites(ctx)
	if err != nil {
		return err
	}
	r.RestWrites = rested.vms + rested.pods - up.vms - up.pods
	if r.Controller, err = bench.MemoryOf(e.controller.PID()); err != nil {
		return err
	}
	r.Informers, err = e.measureFloor(ctx)
	return err
}

func timed(what string, do func() error) (time.Duration, error) {
	begin := time.Now()
	err := do()
	bench.Logf("%s after %s", what, time.Since(begin).Round(time.Millisecond))
	return time.Since(begin), err
}

// newVM is a VM without a disk that lasts.
func newVM(name string) *api.VirtualMachine {
	return framework.NewVM(name).Namespace(namespace).Driver("pod").Image(guestImage).
		Resource(api.ResourceCPU, "1").Resource(api.ResourceMemory, "128Mi").Spec(func(spec *api.VirtualMachineSpec) {
		spec.Ephemeral = true
		spec.NodeSelector = map[string]string{simulatedNode: simulated}
	}).Obj()
}

func (e *environment) createVMs(ctx context.Context, count int) error {
	err := bench.ForEach(ctx, count, parallel, func(ctx context.Context, n int) error {
		_, err := e.vms.Create(ctx, newVM(bench.VMName(n)), metav1.CreateOptions{})
		return err
	})
	if err != nil {
		return err
	}
	return e.waitForVMs(ctx, count)
}

// waitForVMs waits until that many are Active.
func (e *environment) waitForVMs(ctx context.Context, count int) error {
	return waitUntil(ctx, "all VMs are Active", func(context.Context) error {
		list, err := e.allVMs.List(labels.Everything())
		active := countIf(list, func(vm *api.VirtualMachine) bool { return vm.Status.Phase == api.PhaseActive })
		if err == nil && active < count {
			err = fmt.Errorf("%d of %d are", active, count)
		}
		return err
	})
}

// deleteVMs deletes all VMs, as kubectl delete --all does.
func (e *environment) deleteVMs(ctx context.Context) error {
	if err := e.vms.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	return waitUntil(ctx, "all VMs are gone", func(context.Context) error {
		list, err := e.allVMs.List(labels.Everything())
		if err == nil && len(list) > 0 {
			err = fmt.Errorf("%s is there: %s", list[0].Name, framework.FormatStatus(list[0]))
		}
		return err
	})
}

// measureMore creates one VM after the other, and returns how long each took to Active.
func (e *environment) measureMore(ctx context.Context, name string) (times bench.Sample, err error) {
	for n := range e.More {
		name := fmt.Sprintf("%s-%d", name, n)
		begin := time.Now()
		if _, err := e.vms.Create(ctx, newVM(name), metav1.CreateOptions{}); err != nil {
			return nil, err
		}
		if err := e.waitForVM(ctx, name); err != nil {
			return nil, err
		}
		times = append(times, time.Since(begin))
		if err := e.vms.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return nil, err
		}
	}
	return times, bench.AwaitQuiet(ctx, e.controller.PID())
}

// waitForVM follows one VM until it is Active.
func (e *environment) waitForVM(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	w, err := e.vms.Watch(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("metadata.name", name).String()})
	if err != nil {
		return err
	}
	defer w.Stop()
	for change := range w.ResultChan() {
		if vm, ok := change.Object.(*api.VirtualMachine); ok && vm.Status.Phase == api.PhaseActive {
			return nil
		}
	}
	return fmt.Errorf("the watch of %s ended before it was Active: %w", name, ctx.Err())
}

// measurePods measures pods like those of the VMs that nothing but Kubernetes looks after.
func (e *environment) measurePods(ctx context.Context, count int) (c course, err error) {
	before, err := e.readWrites(ctx)
	if err != nil {
		return c, err
	}
	pods := e.kube.CoreV1().Pods(namespace)
	if c.Up, err = timed(fmt.Sprintf("%d bare pods run", count), func() error {
		err := bench.ForEach(ctx, count, parallel, func(ctx context.Context, n int) error {
			_, err := pods.Create(ctx, newPod(bench.VMName(n)), metav1.CreateOptions{})
			return err
		})
		if err != nil {
			return err
		}
		return e.waitForPods(ctx, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning }, count)
	}); err != nil {
		return c, err
	}
	up, err := e.readWrites(ctx)
	if err != nil {
		return c, err
	}
	if c.Down, err = timed(fmt.Sprintf("%d bare pods are gone", count), func() error {
		if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
			return err
		}
		return e.waitForPods(ctx, func(*corev1.Pod) bool { return true }, 0)
	}); err != nil {
		return c, err
	}
	after, err := e.readWrites(ctx)
	c.PodWrites = (after.pods - before.pods) / float64(count)
	c.RequestsUp, c.RequestsDown = (up.requests-before.requests)/float64(count), (after.requests-up.requests)/float64(count)
	return c, err
}

// waitForPods waits until that many are as they should be.
func (e *environment) waitForPods(ctx context.Context, isWanted func(*corev1.Pod) bool, count int) error {
	return waitUntil(ctx, fmt.Sprintf("there are %d pods", count), func(context.Context) error {
		list, err := e.allPods.List(labels.Everything())
		if have := countIf(list, isWanted); err == nil && have != count {
			err = fmt.Errorf("there are %d", have)
		}
		return err
	})
}

func countIf[T any](all []T, isWanted func(T) bool) (n int) {
	for _, one := range all {
		if isWanted(one) {
			n++
		}
	}
	return n
}

// newPod has the size of a VM's pod.
func newPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, NodeSelector: map[string]string{simulatedNode: simulated},
			Containers: []corev1.Container{{
				Name: "machine", Image: machineImage,
				Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
					corev1.ResourceCPU: resource.MustParse("1"), corev1.ResourceMemory: resource.MustParse("320Mi"),
				}},
			}},
		},
	}
}

// writes are how often objects were written since the API server was started, by all, and how many
// requests there were for what a VM consists of.
type writes struct{ vms, pods, requests float64 }

// readWrites reads them. Writes are counted as etcd reports them: once for each object of a
// collection that is deleted, and not for a request that changes nothing.
func (e *environment) readWrites(ctx context.Context) (w writes, err error) {
	content, err := e.kube.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(ctx)
	if err != nil {
		return w, err
	}
	page := framework.Metrics(content)
	const written, requested = "apiserver_storage_events_received_total", "apiserver_request_total"
	w.vms, w.pods = page.Sum(written, `resource="virtualmachines"`), page.Sum(written, `resource="pods"`)
	for _, resource := range []string{"virtualmachines", "pods", "secrets", "persistentvolumeclaims", "namespaces", "events"} {
		label := fmt.Sprintf("resource=%q", resource)
		w.requests += page.Sum(requested, label) - page.Sum(requested, label, `verb="WATCH"`)
	}
	return w, nil
}
