// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"cloudnative.tw/drover/test/assert"
	"cloudnative.tw/drover/test/cluster/internal/cgroups"
	"cloudnative.tw/drover/test/cluster/internal/control"
	"cloudnative.tw/drover/test/cluster/internal/node"
	"cloudnative.tw/drover/test/cluster/internal/plan"
	"cloudnative.tw/drover/test/cluster/internal/processes"
	"cloudnative.tw/drover/test/cluster/internal/rig"
)

// stopTimeout is how long it may take until a cluster is removed.
const stopTimeout = 3 * time.Minute

// rigProcess is the first process of a cluster, and the process that cleans up after it.
type rigProcess struct {
	name, dir string // of the cluster

	*processes.Process
	stdin   io.WriteCloser
	cleaner *exec.Cmd
}

// startRig starts the cluster's first process, links the host to the cluster, which determines
// the plan's slot, and sends the plan to the process.
func startRig(p *plan.Plan) (*rigProcess, error) {
	r := &rigProcess{name: p.Name, dir: p.Dir}
	pidfd, err := r.startProcess(*p)
	if err != nil {
		return nil, err
	}
	defer func() { _ = pidfd.Close() }()
	// Until the process has read the plan it does nothing, and it ends if its input ends.
	if err := errors.Join(r.startCleaner(*p, pidfd), writeProbeImage(*p), linkHost(p, r.Cmd.Process.Pid), p.Write()); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	if err := json.NewEncoder(r.stdin).Encode(p); err != nil {
		return nil, errors.Join(err, r.stop())
	}
	return r, nil
}

// startCleaner starts the process that removes everything that the cluster has left, as soon as
// the process of pidfd has ended.
func (r *rigProcess) startCleaner(p plan.Plan, pidfd *os.File) error {
	//nolint:noctx // It must outlive whatever is cancelled.
	cleaner := exec.Command(p.Program("drover-cluster"), "clean", "--name", p.Name, p.Dir)
	cleaner.ExtraFiles = []*os.File{pidfd}
	cleaner.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cleaner.Start(); err != nil {
		return err
	}
	r.cleaner = cleaner
	return nil
}

// startProcess starts the first process, and returns its pidfd, which becomes readable when the
// process and all others of its PID namespace have ended.
func (r *rigProcess) startProcess(p plan.Plan) (*os.File, error) {
	//nolint:noctx // It ends with its standard input.
	cmd := exec.Command(p.Program("drover-cluster"), "rig", p.Name)
	pidfd := -1
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd, Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS |
		syscall.CLONE_NEWNET | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	r.stdin = stdin
	if r.Process, err = processes.Start(p.Path("cluster.log"), cmd, func(error) {}); err != nil {
		return nil, err
	}
	if pidfd < 0 {
		return nil, errors.Join(errors.New("a cluster needs Linux 5.3 or later, for pidfds"), r.stop())
	}
	return os.NewFile(uintptr(pidfd), "pidfd"), nil
}

// detach lets the cluster run even after this process has ended.
func (r *rigProcess) detach() error { return json.NewEncoder(r.stdin).Encode(true) }

// linkHost gives the host an address in the first network that no other cluster uses, and
// routes to the pods. The kernel removes both with the cluster's network namespace.
func linkHost(p *plan.Plan, pid int) error {
	for p.Slot = range plan.Slots {
		link := &netlink.Veth{
			LinkAttrs: netlink.LinkAttrs{Name: p.HostLink()},
			PeerName:  rig.HostPeer, PeerNamespace: netlink.NsPid(pid),
		}
		used, err := isRouted(p.ControlPlaneIP())
		if err != nil {
			return err
		}
		if used {
			continue
		}
		if err := netlink.LinkAdd(link); errors.Is(err, os.ErrExist) {
			continue
		} else if err != nil {
			return fmt.Errorf("link the host to the cluster: %w", err)
		}
		return addressHost(*p, link)
	}
	return fmt.Errorf("%d clusters run already, or their networks 10.89.0.0/24 and following are used otherwise", plan.Slots)
}

// isRouted reports whether the host has a route to an address other than the default
// route.
func isRouted(ip string) (bool, error) {
	routes, err := netlink.RouteList(nil, netlink.FAMILY_V4)
	if err != nil {
		return false, err
	}
	for _, route := range routes {
		if route.Dst == nil {
			continue
		}
		if ones, _ := route.Dst.Mask.Size(); ones > 0 && route.Dst.Contains(net.ParseIP(ip)) {
			return true, nil
		}
	}
	return false, nil
}

func addressHost(p plan.Plan, link netlink.Link) error {
	address, err := netlink.ParseAddr(p.HostIP() + "/24")
	if err != nil {
		return err
	}
	// The alias says which cluster the link belongs to, even if another cluster uses the slot later.
	if err := errors.Join(netlink.LinkSetAlias(link, p.Name), netlink.AddrAdd(link, address), netlink.LinkSetUp(link)); err != nil {
		return err
	}
	for i := 1; i <= p.Nodes; i++ {
		_, pods, err := net.ParseCIDR(p.PodCIDR(i))
		if err != nil {
			return err
		}
		if err := netlink.RouteAdd(&netlink.Route{Dst: pods, Gw: net.ParseIP(p.NodeIP(i))}); err != nil {
			return fmt.Errorf("route to %s: %w", pods, err)
		}
	}
	return nil
}

// stop ends the cluster, and waits until it is removed.
func (r *rigProcess) stop() error {
	_ = r.Cmd.Process.Kill() // with it, the kernel ends all processes of the namespace
	<-r.Ended
	_ = r.stdin.Close()
	if r.cleaner != nil && r.cleaner.Wait() == nil {
		return nil
	}
	return cleanRepeatedly(r.name, r.dir) // the cleaner was killed or has failed
}

// shutDown ends a cluster that another process started. It removes everything that is left,
// even if the cleaner has been killed.
func shutDown(p plan.Plan) error {
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	_ = control.Post(ctx, p.Socket(), "/shutdown") // the process ends without an answer
	return cleanRepeatedly(p.Name, p.Dir)
}

// Clean waits until a cluster's first process, whose pidfd is descriptor 3, has ended. Then it
// removes everything that is left of the cluster.
func Clean(name, dir string) error {
	for {
		_, err := unix.Poll([]unix.PollFd{{Fd: 3, Events: unix.POLLIN}}, -1)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the cluster's end: %w", err)
		}
	}
	err := cleanRepeatedly(name, dir)
	if err != nil { // written to the folder, because the process that started the cluster may have ended
		_ = os.WriteFile(filepath.Join(dir, "clean.log"), []byte(err.Error()+"\n"), 0o600)
	}
	return err
}

// cleanRepeatedly calls clean until it succeeds, because ending processes may still write
// files.
func cleanRepeatedly(name, dir string) error {
	if err := plan.CheckName(name); err != nil {
		return err
	}
	return assert.Poll(context.Background(), "the cluster in "+dir+" is removed", func() error { return clean(name, dir) })
}

// clean removes everything that is left of a cluster. It removes the folder last, so that the
// folder exists as long as anything is left.
func clean(name, dir string) error {
	if err := errors.Join(unlinkHost(name), cgroups.Remove("/"+name)); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

// unlinkHost removes the host's link to a cluster. The kernel would remove it with the cluster's
// network namespace, but unclosed connections can keep the namespace alive.
func unlinkHost(name string) error {
	links, err := netlink.LinkList()
	if err != nil {
		return err
	}
	for _, link := range links {
		if link.Attrs().Alias != name {
			continue
		}
		if err := netlink.LinkDel(link); err != nil && !errors.Is(err, syscall.ENODEV) {
			return fmt.Errorf("remove %s: %w", link.Attrs().Name, err)
		}
	}
	return nil
}

// ShutDown ends the cluster in a folder, if there is one, and removes what is left of it.
func ShutDown(dir string) error {
	p, err := plan.Read(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return shutDown(p)
}

// RunRig runs the first process of a cluster.
func RunRig(ctx context.Context) error { return rig.Run(ctx, os.Stdin) }

// RunNodeInit runs the first process of a node.
func RunNodeInit(context.Context) error { return node.Init() }

// RunNode runs a node.
func RunNode(ctx context.Context) error { return node.Run(ctx, os.Stdin) }

func (c *Cluster) post(path string) error {
	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	return control.Post(ctx, c.plan.Socket(), path)
}

func nodePath(i int, verb string) string { return "/nodes/" + strconv.Itoa(i) + "/" + verb }
