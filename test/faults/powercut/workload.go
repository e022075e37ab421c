// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package powercut

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/internal/machine"
)

const (
	// stepTimeout bounds a step.
	stepTimeout = 2 * time.Minute
	// answerTimeout is how long a QEMU may take to answer.
	answerTimeout = 20 * time.Second
)

// Servers of the workloads: uidKept is released, uidFetched has an image that is downloaded, and uidBoxed
// is ephemeral and has a container image.
const (
	uidKept    types.UID = "00000000-0000-4000-8000-00000000000a"
	uidFetched types.UID = "00000000-0000-4000-8000-00000000000b"
	uidLast    types.UID = "00000000-0000-4000-8000-00000000000c"
	uidBoxed   types.UID = "00000000-0000-4000-8000-00000000000d"
)

// presence says whether a server exists, and in which list.
type presence string

const (
	presenceNone     presence = "nowhere"
	presenceThere    presence = "there"
	presenceRetained presence = "retained"
)

// step is a step of a workload, and the presence of its server afterwards.
type step struct {
	name string
	uid  types.UID
	to   presence
	do   func(context.Context) error
}

// workload uses a driver as the controller does.
type workload struct {
	driver driver.Driver
	specs  map[types.UID]driver.ServerSpec
	steps  []step
	// folders must be empty once all servers are deleted.
	folders []string
	// disks are the files to which guests write; diskPath returns the path of a disk below the
	// driver's folder.
	disks    []string
	diskPath func(uid types.UID, disk string) string
	// store is the folder of images. Its files do not change, except those for which mayChange returns true. While
	// storeUserFile exists, a server uses the store, and all files of the store must exist.
	store, storeUserFile string
	mayChange            func(name string) bool
	// isVolatile says that the driver promises only to work after a power cut.
	isVolatile bool
	// program is the QEMU program that the driver starts; nil for the fake driver.
	program *machine.Program
}

// run runs all steps, in the process under strace.
func (w *workload) run(ctx context.Context) error {
	for _, s := range w.steps {
		Mark("begin " + s.name)
		if err := w.doStep(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		Mark("end " + s.name)
	}
	return nil
}

func (w *workload) doStep(ctx context.Context, s step) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	return s.do(ctx)
}

// reach returns a step that repeats Ensure until a server is in a state, which may take
// several calls while its image is downloaded.
func (w *workload) reach(name string, uid types.UID, power driver.Power, want driver.State, change func(*driver.ServerSpec)) step {
	return step{name, uid, presenceThere, func(ctx context.Context) error {
		spec := w.specs[uid]
		spec.Power, spec.StopBy = power, time.Now()
		if change != nil {
			change(&spec)
		}
		for {
			s, err := w.driver.Ensure(ctx, spec)
			if err == nil && s.State == want || err != nil && !mayRetry(err) {
				return err
			}
			if ended := pause(ctx); ended != nil {
				return fmt.Errorf("it is %s, not %s: %w", s.State, want, errors.Join(err, ended))
			}
		}
	}}
}

// mayRetry reports whether a call timed out, for example because QEMU was slow on a busy host.
func mayRetry(err error) bool { return errors.Is(err, context.DeadlineExceeded) }

func pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(5 * time.Millisecond):
		return nil
	}
}

// remove returns a step that repeats Delete until a server is deleted or released.
func (w *workload) remove(name string, uid types.UID, retain bool) step {
	to := presenceNone
	if retain {
		to = presenceRetained
	}
	return step{name, uid, to, func(ctx context.Context) error { return w.removeServer(ctx, uid, retain) }}
}

func (w *workload) removeServer(ctx context.Context, uid types.UID, retain bool) error {
	for {
		err := w.driver.Delete(ctx, driver.Target{UID: uid, Epoch: 1}, retain)
		if errors.Is(err, driver.ErrNotFound) {
			return nil
		}
		if err != nil && !mayRetry(err) {
			return err
		}
		if ended := pause(ctx); ended != nil {
			return errors.Join(err, ended)
		}
	}
}

// guestData is the amount of data that guests write to their disks and flush, in bytes.
const guestData = 4096

// use returns a step that appends data to a disk and syncs it, as a guest does.
func (w *workload) use(name string, uid types.UID, file string) step {
	return step{name, uid, presenceThere, func(context.Context) error {
		f, err := os.OpenFile(file, os.O_RDWR, 0)
		if err != nil {
			return err
		}
		info, err := f.Stat()
		if err == nil {
			_, err = f.WriteAt([]byte(fmt.Sprintf("%*s", guestData, name)), info.Size())
		}
		if err == nil {
			err = f.Sync()
		}
		return errors.Join(err, f.Close())
	}}
}
