// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package apifaults

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"time"

	etcd "go.etcd.io/etcd/api/v3/etcdserverpb"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"cloudnative.tw/drover/test/faults/lab"
)

// etcdRun is a run of an etcdCase.
type etcdRun struct {
	*lab.Lab
	etcdCase
	etcd     *grpc.ClientConn
	engine   lab.Fake
	world    *lab.World
	replicas *lab.Replicas
	// connect connects the controllers with the API server again after cutOff.
	connect  func()
	snapshot lab.State // at the time of the backup
	state    lab.State // at the end
	output   string
}

// begin creates a world with VirtualMachines.
func (r *etcdRun) begin(ctx context.Context) (err error) {
	if r.world, err = r.NewWorld(ctx); err != nil {
		return err
	}
	if err := r.engine.Prepare(ctx, r.world); err != nil {
		return err
	}
	if err := r.startReplicas(); err != nil {
		return err
	}
	all := []string{deleted, restarted, resized, untouched}
	for _, name := range all {
		if err := r.world.CreateVM(ctx, r.engine.NewVM(name).Obj()); err != nil {
			return err
		}
	}
	return r.waitApplied(ctx, all...)
}

func (r *etcdRun) startReplicas() (err error) {
	r.replicas, err = r.world.StartReplicas(lab.Plan{Engine: r.engine, Recovery: lab.ByRestart, Unprotected: r.undone})
	return err
}

// outageTime is how long etcd is full. It is short enough for a leader to keep its Lease.
const outageTime = 2 * time.Second

// restart kills the API server with its etcd, calls do, and starts the API server again.
func (r *etcdRun) restart(do func() error) error {
	if err := errors.Join(r.Kill(), do()); err != nil {
		return err
	}
	return r.Start()
}

func nothing() error { return nil }

// killAfter kills the API server some time after the requests.
func killAfter(after time.Duration) func(context.Context, *etcdRun) error {
	return func(_ context.Context, r *etcdRun) error {
		time.Sleep(after)
		return r.restart(nothing)
	}
}

// fillAfter makes etcd refuse writes for a while, some time after the requests.
func fillAfter(after time.Duration) func(context.Context, *etcdRun) error {
	return func(ctx context.Context, r *etcdRun) error {
		time.Sleep(after)
		if err := r.setFull(ctx, etcd.AlarmRequest_ACTIVATE); err != nil {
			return err
		}
		time.Sleep(outageTime)
		return r.setFull(ctx, etcd.AlarmRequest_DEACTIVATE)
	}
}

// setFull activates or disarms etcd's alarm NOSPACE.
func (r *etcdRun) setFull(ctx context.Context, action etcd.AlarmRequest_AlarmAction) error {
	_, err := etcd.NewMaintenanceClient(r.etcd).Alarm(ctx, &etcd.AlarmRequest{Action: action, Alarm: etcd.AlarmType_NOSPACE})
	return err
}

// cutOff disconnects controllers from the API server, and restarts it so that its caches are empty.
func cutOff(_ context.Context, r *etcdRun) error {
	r.connect = r.world.CutAPI()
	return r.restart(nothing)
}

// compactAndReturn discards all versions that the controllers know, and connects the controllers again.
func compactAndReturn(ctx context.Context, r *etcdRun) error {
	err := r.compactAll(ctx)
	if err == nil {
		err = r.restart(nothing)
	}
	r.connect()
	return err
}

// compactAll discards all versions except the newest.
func (r *etcdRun) compactAll(ctx context.Context) error {
	now, err := r.revision(ctx)
	if err == nil {
		_, err = etcd.NewKVClient(r.etcd).Compact(ctx, &etcd.CompactionRequest{Revision: now, Physical: true})
	}
	return err
}

// revision returns etcd's revision.
func (r *etcdRun) revision(ctx context.Context) (int64, error) {
	list, err := r.KubeClient.CoreV1().Namespaces().List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(list.ResourceVersion, 10, 64)
}

func (r *etcdRun) etcdDir() string { return filepath.Join(r.DataDir, "etcd") }

func (r *etcdRun) backupDir() string { return filepath.Join(r.DataDir, "backup") }

// backUp makes a backup of etcd, and records the state of the world.
func backUp(ctx context.Context, r *etcdRun) (err error) {
	if r.snapshot, _, err = r.world.Judge(ctx, r.replicas); err != nil {
		return err
	}
	return r.restart(func() error {
		return errors.Join(os.RemoveAll(r.backupDir()), os.CopyFS(r.backupDir(), os.DirFS(r.etcdDir())))
	})
}

// returnToBackup replaces etcd's folder by the backup.
func (r *etcdRun) returnToBackup() error {
	return errors.Join(os.RemoveAll(r.etcdDir()), os.CopyFS(r.etcdDir(), os.DirFS(r.backupDir())))
}

// restoreRaised restores the backup as the documentation says: with a revision above all earlier
// ones, and compacted, so that no watch can continue from an old version. Controllers keep running.
func restoreRaised(ctx context.Context, r *etcdRun) error {
	before, err := r.revision(ctx)
	if err != nil {
		return err
	}
	r.connect = r.world.CutAPI()
	if err := r.restart(r.returnToBackup); err != nil {
		return err
	}
	if err := errors.Join(r.raiseRevision(ctx, before), r.compactAll(ctx)); err != nil {
		return err
	}
	err = r.restart(nothing)
	r.connect()
	return err
}

// raiseRevision writes until etcd's revision is above a minimum.
func (r *etcdRun) raiseRevision(ctx context.Context, minimum int64) error {
	configMaps := r.KubeClient.CoreV1().ConfigMaps(r.world.System)
	filler := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{GenerateName: "raise-"}}
	for {
		made, err := configMaps.Create(ctx, filler, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if now, err := strconv.ParseInt(made.ResourceVersion, 10, 64); err != nil || now > minimum {
			return err
		}
	}
}

// restoreAsIs restores the backup with its old revision, as the documentation says: while no
// controller runs, and with the engine's record of epochs removed.
func restoreAsIs(_ context.Context, r *etcdRun) error {
	r.replicas.Stop()
	if err := r.restart(r.returnToBackup); err != nil {
		return err
	}
	if err := os.RemoveAll(filepath.Join(r.world.Dir, "fake", "epochs")); err != nil {
		return err
	}
	if err := r.replicas.ClearLease(); err != nil {
		return err
	}
	return r.startReplicas()
}
