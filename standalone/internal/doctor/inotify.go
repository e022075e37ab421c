// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/internal/inotify"
)

// startInstances is how many inotify instances a start of Drover takes, for its drivers and for the
// files of certificates. runInstances is how many more a running Drover may need, when a driver
// watches its folder again.
const (
	startInstances = 12
	runInstances   = 2
)

// inotifyFacts are facts about the watches of files.
type inotifyFacts struct {
	user  User
	count int   // how many more instances Drover needs
	err   error // why the user cannot have them
}

func gatherInotify(_ context.Context, h *Host) inotifyFacts {
	f := inotifyFacts{user: h.User, count: startInstances}
	if h.isDroverRunning() {
		f.count = runInstances
	}
	f.err = h.User.tryAs(func() error { return inotify.Check(f.count, "/") })
	return f
}

func judgeInotify(f inotifyFacts) []findings.Finding {
	if errors.Is(f.err, errOtherUser) {
		return oneFinding(findings.Note("whether files can be watched is unknown: %v", f.err))
	}
	if f.err == nil {
		return oneFinding(findings.OK("user %s can watch files", f.user.Name))
	}
	found := findings.Error("user %s cannot watch %d more folders: %v", f.user.Name, f.count, f.err).
		Means("Drivers qemu and fake are unavailable, and renewed certificates are read late. Other programs of the user use up the limit of the host.")
	if limit, ok := errors.AsType[*inotify.LimitError](f.err); ok {
		return oneFinding(found.FixedBy("raise the limit, also for the next boot: write %q into /etc/sysctl.d/60-drover.conf", limit.Line).FixedByCommand("%s", limit.Command))
	}
	return oneFinding(found.FixedBy("let the user have more open files"))
}
