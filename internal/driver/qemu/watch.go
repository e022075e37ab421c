// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package qemu

import (
	"context"
	"sync"

	"github.com/fsnotify/fsnotify"
	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver/kit"
	"cloudnative.tw/drover/internal/driver/qemu/instance"
	"cloudnative.tw/drover/internal/driver/qemu/record"
)

// Watch reports servers whose notification file is written, whose directory comes or
// goes, and whose supervisor reports a change.
func (d *Driver) Watch(ctx context.Context) (<-chan types.UID, error) {
	if err := kit.CheckContext(ctx); err != nil {
		return nil, err
	}
	files, err := d.Host.StateDir.Notify(instance.VMsDir, instance.RetainedDir, instance.NotificationsDir)
	if err != nil {
		return nil, err
	}
	instances, err := listInstances(ctx, d.Host, nil)
	if err != nil {
		_ = files.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	w := &watch{host: d.Host, files: files, queue: d.watches.Open(ctx), ended: make(chan string), supervisors: map[string]*follower{}}
	uids := make(chan types.UID)
	go func() {
		defer close(uids)
		var following sync.WaitGroup
		following.Go(func() { w.run(ctx, cancel, instances) })
		kit.Send(ctx, w.queue, uids, nil)
		following.Wait()
	}()
	return uids, nil
}

// watch serves one call of Watch.
type watch struct {
	host  *instance.Host
	files *fsnotify.Watcher
	queue *kit.Queue
	ended chan string // the paths of servers whose followers have ended

	supervisors map[string]*follower // by directory
}

func (w *watch) run(ctx context.Context, cancel context.CancelFunc, instances []*instance.Instance) {
	defer w.waitSupervisors()
	defer cancel()
	defer func() { _ = w.files.Close() }()
	for _, inst := range instances {
		if !w.isOtherCluster(inst) {
			w.startSupervisor(ctx, inst)
		}
	}
	for w.handleNext(ctx) {
	}
}

// handleNext handles one event, and reports whether the watch goes on.
func (w *watch) handleNext(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case event, open := <-w.files.Events:
		if !open || w.host.StateDir.IsEnd(event) {
			return false
		}
		w.handleFileEvent(ctx, event)
	case err := <-w.files.Errors:
		_ = err // Whatever it is, events were lost, and the watcher has to list again.
		return false
	case path := <-w.ended:
		w.replaceSupervisor(ctx, path)
	}
	return true
}

func (w *watch) handleFileEvent(ctx context.Context, event fsnotify.Event) {
	uid := record.UIDOf(event.Name)
	if uid == "" || event.Op == fsnotify.Chmod {
		return
	}
	inst := w.host.InstanceOf(uid)
	if instance.IsRetained(event.Name) {
		inst.Machine.Path = event.Name
	}
	if w.isOtherCluster(inst) {
		return
	}
	w.queue.Add(uid)
	w.startSupervisor(ctx, inst)
}

// isOtherCluster reports whether a server belongs to another cluster.
func (w *watch) isOtherCluster(inst *instance.Instance) bool {
	r, err := inst.Load()
	return err == nil && r.ClusterID != w.host.ClusterID
}

// follower sees to the supervisor of one server while its QEMU runs.
type follower struct {
	instance *instance.Instance
	restart  bool // something changed, and may have been a start
}

// startSupervisor makes sure that a server of this cluster is seen to.
func (w *watch) startSupervisor(ctx context.Context, inst *instance.Instance) {
	if s := w.supervisors[inst.Machine.Path]; s != nil {
		s.restart = true
		return
	}
	w.supervisors[inst.Machine.Path] = &follower{instance: inst}
	go func() {
		instance.Supervise(ctx, inst, func() { w.queue.Add(inst.UID) })
		w.ended <- inst.Machine.Path
	}()
}

// replaceSupervisor removes a follower whose QEMU is gone, and starts another if the
// server changed meanwhile.
func (w *watch) replaceSupervisor(ctx context.Context, path string) {
	s := w.supervisors[path]
	delete(w.supervisors, path)
	if s.restart {
		w.startSupervisor(ctx, s.instance)
	}
}

// waitSupervisors waits until all followers have ended. The supervisors run on.
func (w *watch) waitSupervisors() {
	for len(w.supervisors) > 0 {
		delete(w.supervisors, <-w.ended)
	}
}
