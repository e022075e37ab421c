// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package guestwrites

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"cloudnative.tw/drover/hack/guest/blocks"
	"cloudnative.tw/drover/internal/machine/launch"
)

// imageTimeout bounds a run of qemu-img.
const imageTimeout = time.Minute

// diskName returns the name of a disk's file.
func diskName(disk int) string { return fmt.Sprintf("disk-%d.qcow2", disk) }

// check checks the disks after a power cut by qemu-img and by the guest's blocks.
func (s state) check(ctx context.Context, dir string) error {
	if err := s.write(dir); err != nil {
		return err
	}
	return checkDisks(ctx, dir, s.shown)
}

// write writes the disks to a folder.
func (s state) write(dir string) error {
	for disk, content := range s.disks {
		if err := os.WriteFile(filepath.Join(dir, diskName(disk)), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// lostError is an error that shows that a disk is damaged.
type lostError struct{ error }

// judgeExit returns a program's error as a lostError if the program exited by itself. The error of a
// program that did not start, or was killed after a timeout, says nothing about the disks.
func judgeExit(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || !exit.Exited() {
		return err
	}
	return lostError{err}
}

// checkDisks checks the disks in a folder. A disk that was not created yet is empty.
func checkDisks(ctx context.Context, dir string, shown claims) error {
	for disk, synced := range shown.Synced {
		path := filepath.Join(dir, diskName(disk))
		info, err := os.Stat(path)
		if err != nil {
			return err
		}
		if info.Size() == 0 && synced == 0 {
			continue
		}
		if err := checkDisk(ctx, path, synced, shown.GrownAt[disk]); err != nil {
			return fmt.Errorf("disk %d, of which the guest had synced %d rounds: %w", disk, synced, err)
		}
	}
	return nil
}

// checkDisk checks a disk: its format, and the blocks of the rounds that the guest had synced.
func checkDisk(ctx context.Context, path string, synced, grownAt uint64) error {
	const leaks = 3        // the exit code for leaked clusters, which a power cut may cause
	disk := launch.Object{ // without the backing file, which lacks the guest's blocks and may be gone
		"driver": "qcow2", "backing": nil, "file": launch.Object{"driver": "file", "filename": path},
	}
	name := "json:" + disk.Text()
	out, err := runQEMUImg(ctx, "check", name)
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() != leaks) {
		return judgeExit(fmt.Errorf("qemu-img check: %w: %s", err, out))
	}
	raw := path + ".raw"
	if out, err := runQEMUImg(ctx, "convert", "-O", "raw", name, raw); err != nil {
		return judgeExit(fmt.Errorf("qemu-img convert: %w: %s", err, out))
	}
	f, err := os.Open(raw)
	if err != nil {
		return err
	}
	defer func() { _ = errors.Join(f.Close(), os.Remove(raw)) }()
	for _, place := range blocks.Required(synced, grownAt) {
		data := make([]byte, blocks.Size)
		if _, err := f.ReadAt(data, place.Offset()); err != nil {
			return lostError{err}
		}
		if b, ok := blocks.Decode(data); !ok || b.Count != place.Count || int(b.Area) != place.Area {
			return lostError{fmt.Errorf("area %d should have round %d, and has %+v, complete: %t", place.Area, place.Count, b, ok)}
		}
	}
	return nil
}

func runQEMUImg(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, imageTimeout)
	defer cancel()
	out, err := exec.CommandContext(ctx, "qemu-img", args...).CombinedOutput()
	return string(out), err
}
