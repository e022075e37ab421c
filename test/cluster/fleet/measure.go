// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	"cloudnative.tw/drover/client/clientset/versioned"
	"cloudnative.tw/drover/client/informers/externalversions"
	"cloudnative.tw/drover/test/bench"
)

const (
	// floorName, as first argument, makes this program run only two informers.
	floorName = "informers"
	// restTime is how long writes at rest are counted.
	restTime = time.Minute
	// settlePause is the pause before memory is measured.
	settlePause = 10 * time.Second
)

// runInformers only keeps all VirtualMachines and pods in memory, as every controller for them
// has to.
func runInformers(ctx context.Context, config *rest.Config, _ []string) error {
	ofVMs := externalversions.NewSharedInformerFactory(versioned.NewForConfigOrDie(config), 0)
	ofPods := informers.NewSharedInformerFactory(kubernetes.NewForConfigOrDie(config), 0)
	ofVMs.Cloudnative().V1alpha1().VirtualMachines().Informer()
	ofPods.Core().V1().Pods().Informer()
	if err := bench.FillCaches(ctx, ofVMs, ofPods); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// phase has the duration of an operation, how often all clients wrote objects during it, and the number
// of requests for the objects of VMs.
type phase struct {
	took                time.Duration
	vms, pods, requests float64
}

// measure returns the costs of an operation, including writes until the controller is quiet.
func (f *fleet) measure(ctx context.Context, what string, do func() (time.Duration, error)) (p phase, err error) {
	before, err := f.readWrites(ctx)
	if err == nil {
		p.took, err = do()
	}
	if err == nil {
		err = bench.AwaitQuiet(ctx, f.controller.PID())
	}
	if err != nil {
		return p, fmt.Errorf("%s: %w", what, err)
	}
	bench.Logf("%s after %s", what, p.took.Round(time.Millisecond))
	after, err := f.readWrites(ctx)
	p.vms, p.pods, p.requests = after.vms-before.vms, after.pods-before.pods, after.requests-before.requests
	return p, err
}

// readWrites reads the API server's counters. Writes are those of etcd: one for each object of a
// collection that is deleted, and none for a request that changes nothing.
func (f *fleet) readWrites(ctx context.Context) (p phase, err error) {
	page, err := f.ReadAPIMetrics(ctx)
	const written, requested = "apiserver_storage_events_received_total", "apiserver_request_total"
	p.vms, p.pods = page.Sum(written, `resource="virtualmachines"`), page.Sum(written, `resource="pods"`)
	for _, resource := range []string{"virtualmachines", "pods", "secrets", "persistentvolumeclaims", "namespaces", "events"} {
		label := fmt.Sprintf("resource=%q", resource)
		p.requests += page.Sum(requested, label) - page.Sum(requested, label, `verb="WATCH"`)
	}
	return p, err
}

// measureRounds measures bare pods and then VMs, for each number.
func (f *fleet) measureRounds(ctx context.Context) error {
	alone, err := f.measureMore(ctx, "alone")
	if err != nil {
		return err
	}
	for _, count := range f.Sizes {
		podsUp, podsDown, err := f.measurePods(ctx, count)
		if err != nil {
			return err
		}
		up, err := f.measure(ctx, "the VMs are Active", func() (time.Duration, error) { return f.VMs.CreateMany(ctx, count) })
		if err != nil {
			return err
		}
		if err := f.measureRest(ctx, count, alone); err != nil {
			return err
		}
		down, err := f.measure(ctx, "the VMs are gone", func() (time.Duration, error) {
			return bench.WaitForAll(ctx, bench.WatchVMs(f.VMs), count, bench.IsGone[*api.VirtualMachine], func(ctx context.Context) error {
				return f.VMs.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
			})
		})
		if err != nil {
			return err
		}
		f.addRows(count, up, down, podsUp, podsDown)
	}
	return nil
}

// addRows reports the costs of each VM, compared with a bare pod.
func (f *fleet) addRows(count int, up, down, podsUp, podsDown phase) {
	n := float64(count)
	add := func(what, unit string, vm, pod float64) {
		f.AddRow(what, count, unit, vm/n).CompareWith("bare pod", pod/n)
	}
	add("create to Active, each", "ms", bench.Milliseconds(up.took), bench.Milliseconds(podsUp.took))
	add("delete, each", "ms", bench.Milliseconds(down.took), bench.Milliseconds(podsDown.took))
	add("writes of its pod, up and down", "", up.pods+down.pods, podsUp.pods+podsDown.pods)
	add("requests, up", "", up.requests, podsUp.requests)
	add("requests, down", "", down.requests, podsDown.requests)
	f.AddRow("writes of a VM to Active, with the user's", count, "", up.vms/n)
	f.AddRow("writes of a VM until gone, with the user's", count, "", down.vms/n)
}

// measurePods measures pods like those of VMs, but without Drover.
func (f *fleet) measurePods(ctx context.Context, count int) (up, down phase, err error) {
	pods, watched := f.KubeClient.CoreV1().Pods(bench.Namespace), f.watched("pods", bench.Namespace)
	up, err = f.measure(ctx, "bare pods run", func() (time.Duration, error) {
		return bench.WaitForAll(ctx, watched, count, func(_ watch.EventType, p *corev1.Pod) bool {
			return p.Status.Phase == corev1.PodRunning
		}, func(ctx context.Context) error {
			return bench.ForEach(ctx, count, parallel, func(ctx context.Context, n int) error {
				_, err := pods.Create(ctx, newPod(bench.VMName(n)), metav1.CreateOptions{})
				return err
			})
		})
	})
	if err != nil {
		return up, down, err
	}
	down, err = f.measure(ctx, "bare pods are gone", func() (time.Duration, error) {
		return bench.WaitForAll(ctx, watched, count, bench.IsGone[*corev1.Pod], func(ctx context.Context) error {
			return pods.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
		})
	})
	return up, down, err
}

// measureRest measures the writes at rest, the memory, and the costs of one more VM.
func (f *fleet) measureRest(ctx context.Context, count int, alone []float64) error {
	rest, err := f.measure(ctx, "a rest ends", func() (time.Duration, error) { return restTime, bench.Pause(ctx, restTime) })
	if err != nil {
		return err
	}
	f.AddRow("writes at rest", count, "", rest.vms+rest.pods).AtMost(0)
	controller, err := bench.MemoryOf(f.controller.PID())
	if err != nil {
		return err
	}
	floor, err := f.measureFloor(ctx)
	if err != nil {
		return err
	}
	f.AddRow("resident memory of the controller", count, "MB", bench.Megabytes(controller.Resident)).
		CompareWith("two bare informers", bench.Megabytes(floor.Resident)).RatioAtMost(1.5)
	among, err := f.measureMore(ctx, "more")
	f.AddRow("one more VM, p95", count, "ms", bench.Percentile(among, 95)).
		CompareWith("alone", bench.Percentile(alone, 95)).RatioAtMost(1.2)
	return err
}

// measureMore creates one VM after the other, and returns how long each took until it was Active.
func (f *fleet) measureMore(ctx context.Context, name string) (times []float64, err error) {
	quiet := func(ctx context.Context) error { return bench.AwaitQuiet(ctx, f.controller.PID()) }
	for n := range f.Turns {
		active, _, err := f.VMs.NewOne(ctx, fmt.Sprintf("%s-%d", name, n), quiet)
		if err != nil {
			return nil, err
		}
		times = append(times, bench.Milliseconds(active))
	}
	return times, quiet(ctx)
}

// measureFloor returns the memory of the informers, some time after their caches are filled.
func (f *fleet) measureFloor(ctx context.Context) (m bench.Memory, err error) {
	p, err := f.StartFloor(floorName)
	if err != nil {
		return m, err
	}
	defer func() { err = errors.Join(err, p.Stop()) }()
	if err := bench.Pause(ctx, settlePause); err != nil {
		return m, err
	}
	return bench.MemoryOf(p.PID())
}
