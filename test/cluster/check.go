// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster/internal/plan"
)

// check returns an error if this host lacks something that a cluster needs.
func check(p plan.Plan) error {
	if p.Nodes < 1 || p.Nodes > plan.MaxNodes {
		return fmt.Errorf("a cluster has 1 to %d nodes, not %d", plan.MaxNodes, p.Nodes)
	}
	if os.Geteuid() != 0 {
		return errors.New("a cluster needs root: it makes namespaces, network interfaces and control groups")
	}
	if err := checkDir(p.Dir); err != nil {
		return err
	}
	return checkPrograms()
}

// checkDir rejects folders that nodes cannot see, because they mount their own folders over them.
func checkDir(dir string) error {
	if dir == "" {
		dir = os.TempDir()
	}
	path, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, hidden := range []string{"/run/", "/var/run/", "/var/lib/", "/var/log/", "/proc/", "/sys/"} {
		if strings.HasPrefix(path+"/", hidden) {
			return fmt.Errorf("a cluster cannot be in %s: choose another folder, or TMPDIR, outside of %s", dir, hidden)
		}
	}
	return nil
}

func checkPrograms() error {
	var missing []string
	for _, program := range []string{"runc", "nft"} {
		if _, err := exec.LookPath(program); err != nil {
			if _, err := os.Stat(filepath.Join("/usr/sbin", program)); err != nil {
				missing = append(missing, program)
			}
		}
	}
	for _, plugin := range []string{"ptp", "host-local", "portmap"} {
		if _, err := os.Stat(filepath.Join("/usr/lib/cni", plugin)); err != nil {
			missing = append(missing, "CNI plugin "+plugin)
		}
	}
	return assert.ErrorUnless(len(missing) == 0, "missing: %s; hack/cluster-deps.sh installs them", strings.Join(missing, ", "))
}
