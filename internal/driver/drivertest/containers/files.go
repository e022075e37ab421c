// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package containers

import (
	"errors"
	"maps"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/uuid"

	"cloudnative.tw/drover/internal/driver"
	"cloudnative.tw/drover/test/assert"
)

// filesScript prints a file from the start, and waits.
const filesScript = `cat /etc/app/key; exec sleep 1000000`

// testFiles checks that a machine has the files of a spec before its command starts, as the command's user's; that they
// are replaced while it runs, and again after a restart of the guest; and that a machine whose files cannot be read does
// not start. A container is refused.
func (e *env) testFiles(t *testing.T) {
	secret, unread, later := "s3cr3t-"+string(uuid.NewUUID()), "unread-"+string(uuid.NewUUID()), "later-"+string(uuid.NewUUID())
	spec := e.specOf(t, nil, func(s *driver.ServerSpec) {
		s.Args, s.User = []string{filesScript}, "ann"
		s.Files = []driver.FileMount{
			{MountPath: "/etc/app", Revision: "1", Files: []driver.File{
				{Path: "key", Mode: 0o400, Data: driver.NewSecret(secret)}, {Path: "conf.d/run.sh", Mode: 0o755, Data: driver.NewSecret("#!/bin/sh\necho runs\n")},
			}},
			{MountPath: "/var/none", Revision: "1"},
			{MountPath: "/var/unread", Revision: "1", Files: []driver.File{{Path: "x", Mode: 0o400, Data: driver.NewSecret(unread)}}},
		}
	})
	if !e.IsMachine {
		_, err := e.driver.Ensure(t.Context(), spec)
		assert.ErrorIs(t, "Ensure", err, driver.ErrUnsupported, "spec.files")
		return
	}
	missing := spec
	missing.FilesErr = driver.Errorf(driver.ErrRetry, "a Secret is missing")
	_, err := e.driver.Ensure(t.Context(), missing)
	assert.ErrorIs(t, "Ensure without the files", err, driver.ErrRetry, "a Secret is missing")
	e.startRun(t, spec, "")
	e.waitForOutput(t, spec, secret)
	wantNoCommandLine(t, secret)
	e.checkCommands(t, spec, []imageCommand{{script: `busybox stat -L -c "%a %u %g" /etc/app/key; /etc/app/conf.d/run.sh; busybox ls /etc/app /var/none; busybox stat -f -c %T /etc/app/key; busybox grep -c " /etc/app tmpfs ro," /proc/mounts`, prints: "400 1000 1000\nruns\n/etc/app:\nconf.d\nkey\n\n/var/none:\ntmpfs\n1\n"}})
	writer, ok := driver.As[driver.FileWriter](e.driver)
	assert.Require(t, ok, "the driver does not implement driver.FileWriter")
	next := driver.FileMount{MountPath: "/etc/app", Revision: "2", Files: []driver.File{{Path: "key", Mode: 0o444, Data: driver.NewSecret("changed")}}}
	wantRevisions(t, spec, writer, map[string]string{"/etc/app": "1", "/var/none": "1", "/var/unread": "1"})
	assert.NoError(t, writer.WriteFiles(t.Context(), spec.UID, next))
	wantRevisions(t, spec, writer, map[string]string{"/etc/app": "2", "/var/none": "1", "/var/unread": "1"})
	e.checkCommands(t, spec, []imageCommand{{script: `cat /etc/app/key; busybox ls /etc/app`, prints: "changedkey\n"}})
	largest := driver.FileMount{MountPath: "/var/none", Revision: "2", Files: []driver.File{{Path: "x", Mode: 0o444, Data: driver.NewSecret(strings.Repeat("\xff", 1<<20))}}}
	assert.NoError(t, writer.WriteFiles(t.Context(), spec.UID, largest))
	e.checkCommands(t, spec, []imageCommand{{script: `busybox wc -c </var/none/x`, prints: "1048576\n"}})
	largest.MountPath = "/later"
	assert.ErrorIs(t, "a folder that the run lacks", writer.WriteFiles(t.Context(), spec.UID, largest), driver.ErrRetry, "restart the machine")
	unreadLater := driver.FileMount{MountPath: "/var/unread", Revision: "2", Files: []driver.File{{Path: "x", Mode: 0o400, Data: driver.NewSecret(later)}}}
	e.checkCommands(t, spec, []imageCommand{{script: "busybox test -s /var/unread/x && busybox sync"}})
	e.wantNotStored(t, unread)
	assert.NoError(t, writer.WriteFiles(t.Context(), spec.UID, unreadLater))
	e.checkCommands(t, spec, []imageCommand{{script: "busybox test -s /var/unread/x && busybox sync"}})
	e.wantNotStored(t, later)
	e.wantUnmounted(t, spec, writer, next)
	changed := spec
	changed.Files = []driver.FileMount{next}
	pending, err := e.driver.Ensure(t.Context(), changed)
	assert.True(t, err == nil && len(pending.Pending) == 1 && pending.Pending[0] == "files", "with another folder the server is %+v, %v", pending, err)
}

// wantNotStored checks that no file of the driver has a text.
func (e *env) wantNotStored(t *testing.T, text string) {
	t.Helper()
	names, err := exec.CommandContext(t.Context(), "grep", "-rlF", "--devices=skip", text, e.Dir).Output() //nolint:gosec // of the test
	var end *exec.ExitError
	assert.Require(t, errors.As(err, &end), "grep ended with %v, and found %s in %s", err, text, names)
	// Other tests remove files of their machines at the same time.
	problems := regexp.MustCompile(`(?m)^grep: .*: No such file or directory\n`).ReplaceAllString(string(end.Stderr), "")
	assert.True(t, len(names) == 0 && problems == "", "grep ended with %v, %s, and found %s in %s", err, problems, text, names)
}

// wantUnmounted checks that files which root has unmounted are an error, and that the agent goes on.
func (e *env) wantUnmounted(t *testing.T, spec driver.ServerSpec, writer driver.FileWriter, next driver.FileMount) {
	t.Helper()
	e.checkCommands(t, spec, []imageCommand{{user: "root", script: "busybox umount /etc/app"}, {user: "root", script: "busybox umount -l /etc/app"}})
	for range 2 {
		err := writer.WriteFiles(t.Context(), spec.UID, next)
		assert.True(t, errors.Is(err, driver.ErrRetry), "after umount the error is %v", err)
		assert.Contains(t, "the error", err.Error(), "unmounted or hidden")
	}
	e.checkCommands(t, spec, []imageCommand{{script: "busybox ls /etc/app"}})
	wantRevisions(t, spec, writer, map[string]string{"/etc/app": "", "/var/none": "2", "/var/unread": "2"})
}

func wantRevisions(t *testing.T, spec driver.ServerSpec, writer driver.FileWriter, want map[string]string) {
	t.Helper()
	got, err := writer.FileRevisions(t.Context(), spec.UID)
	assert.NoError(t, err)
	assert.True(t, maps.Equal(got, want), "the revisions are %v, want %v", got, want)
}
