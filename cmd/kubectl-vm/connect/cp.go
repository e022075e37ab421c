// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package connect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/tools/remotecommand"

	api "cloudnative.tw/drover/apis/cloudnative/v1alpha1"
	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	vms "cloudnative.tw/drover/cmd/kubectl-vm/vm"
	"cloudnative.tw/drover/internal/guest/files"
	"cloudnative.tw/drover/internal/image/source"
)

// copyOptions are the flags of cp.
type copyOptions struct {
	sshOptions
	recursive bool
}

// NewCopyCommand returns the verb cp.
func NewCopyCommand(o *kit.Options) *cobra.Command {
	c := &copyOptions{sshOptions: sshOptions{Options: o}}
	cmd := joinGroup(o, &cobra.Command{
		Use:   "cp [USER@]NAME:PATH LOCAL | LOCAL... [USER@]NAME:PATH",
		Short: "Copy files to or from a VM",
		Long: "Copy files to or from a VM. A machine of a container image (driver qemu) needs nothing for it:\n" +
			"Drover's program in it reads and writes, as root, and new files belong to the image's user.\n" +
			"A file that exists keeps its owner and mode, and its content until the new one is whole.\n" +
			"It copies folders without -r too. From a VM, symbolic links that lead out of the copied folder are left\n" +
			"out, and named at the end. Every other VM, and each as USER@NAME or with a flag for ssh,\n" +
			"is reached with the scp of this computer.",
		Example: o.FormatExamples("cp page.html web:/srv/", "cp -r debian@deb:/var/log ./log"),
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) < 2 {
				return errors.New("give what to copy, and where to")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := c.readFlags(cmd); err != nil {
				return err
			}
			return c.copyPaths(cmd.Context(), args)
		},
	})
	c.addFlags(cmd.Flags())
	cmd.Flags().BoolVarP(&c.recursive, "recursive", "r", false, "copy folders with their content")
	return cmd
}

func (c *copyOptions) copyPaths(ctx context.Context, paths []string) error {
	var remotes []int
	ends := make([]copyEnd, len(paths))
	for n, text := range paths {
		var err error
		if ends[n], err = parseCopyEnd(text); err != nil {
			return err
		}
		if ends[n].name != "" {
			remotes = append(remotes, n)
		}
	}
	if len(remotes) != 1 {
		return errors.New("one of the paths has to be in a VM, as in NAME:PATH, and the others on this computer")
	}
	remote := ends[remotes[0]]
	vm, err := findReachableVM(ctx, c.Options, remote.name)
	switch {
	case err != nil:
		return err
	case c.usesSSH(remote, vm):
		return c.copyBySSH(ctx, vm, ends)
	case ends[0] == remote && len(ends) == 2:
		return c.receiveFile(ctx, remote, ends[1].path)
	case ends[len(ends)-1] != remote:
		return errors.New("give what to copy before where to, and from a VM one path: NAME:PATH LOCAL")
	}
	if len(ends) > 2 {
		remote.path += "/" // it has to be a folder
	}
	for _, end := range ends[:len(ends)-1] {
		if err := c.sendFile(ctx, end.path, remote); err != nil {
			return err
		}
	}
	return nil
}

// copyBySSH runs scp.
func (c *copyOptions) copyBySSH(ctx context.Context, vm *api.VirtualMachine, ends []copyEnd) error {
	to, err := c.findDestination(vm)
	if err != nil {
		return err
	}
	if c.recursive {
		to.args = append(to.args, "-r")
	}
	args := append(slices.Clone(to.args), "--")
	for _, end := range ends {
		args = append(args, end.scpArgument(to))
	}
	return c.runProgram(ctx, "scp", args)
}

// usesSSH reports whether to copy over ssh, because the command line says so or nothing of Drover's is in the VM.
func (c *copyOptions) usesSSH(end copyEnd, vm *api.VirtualMachine) bool {
	if end.user != "" || c.identity != "" || c.port != sshPort || len(c.options) > 0 || vms.DriverOf(vm) != vms.DriverQEMU {
		return true
	}
	if vm.Spec.Image == nil {
		return false // Drover's default counts, which is not known here
	}
	from := source.Parse(vm.Spec.Image.Source)
	return from.Kind != source.None && !from.IsContainer()
}

// sendFile copies a file or folder of this computer to a machine.
func (c *copyOptions) sendFile(ctx context.Context, local string, remote copyEnd) error {
	local, err := filepath.Abs(local) // "." is not a name
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, out := io.Pipe()
	left := make(chan error, 1)
	go func() {
		err := files.Pack(out, local)
		if _, isLeftOut := errors.AsType[*files.LeftOutError](err); err != nil && !isLeftOut {
			cancel(err) // without an end of the stream, which would make it look whole
		} else {
			_ = out.Close()
		}
		left <- err
	}()
	err = c.runInGuest(ctx, remote, files.WriteCommand, stream, nil)
	cause := context.Cause(ctx)
	_ = stream.Close() // a guest that does not read any further
	if err := cmp.Or(cause, err); err != nil {
		return err
	}
	return <-left
}

// receiveFile copies a file or folder of a machine to this computer.
func (c *copyOptions) receiveFile(ctx context.Context, remote copyEnd, local string) error {
	name := path.Base(path.Clean("/" + remote.path))
	if name == "/" {
		return fmt.Errorf("%q: name a file or folder of the VM", remote.name+":"+remote.path)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stream, in := io.Pipe()
	unpacked := make(chan error, 1)
	go func() {
		err := c.unpackStream(stream, local, name)
		if err != nil {
			cancel(err)
		}
		_ = stream.CloseWithError(err)
		unpacked <- err
	}()
	err := c.runInGuest(ctx, remote, files.ReadCommand, nil, in)
	_ = in.CloseWithError(err)
	return cmp.Or(<-unpacked, err)
}

// unpackStream makes the files of a stream on this computer.
func (c *copyOptions) unpackStream(stream io.Reader, local, name string) error {
	to, err := files.DestinationOf(local, name)
	if err != nil {
		return err
	}
	to.Overwritten = &files.Overwritten{}
	err = files.Unpack(stream, to)
	if note := to.Overwritten.Describe(); note != "" {
		_, _ = fmt.Fprintln(c.ErrOut, note)
	}
	return err
}

// runInGuest runs a command of Drover's program in a machine.
func (c *copyOptions) runInGuest(ctx context.Context, end copyEnd, command string, in io.Reader, out io.Writer) error {
	to, err := vms.FindTarget(ctx, c.Options, end.name, streamsapi.Exec)
	if err != nil {
		return err
	}
	query := url.Values{"command": {command, end.path}, "stdin": {strconv.FormatBool(in != nil)}, "stdout": {strconv.FormatBool(out != nil)}, "stderr": {"true"}}
	err = to.WrapError(ctx, to.RunCommand(ctx, query, guestStreams(in, out, c.ErrOut)))
	if exit := (*kit.ExitError)(nil); err == nil || (errors.As(err, &exit) && exit.Err == nil) { // it has said why
		return err
	}
	return fmt.Errorf("%w; to copy by ssh: USER@%s:PATH", err, end.name)
}

// guestStreams returns the streams of a command in the guest, whose errors reach a terminal without control characters.
func guestStreams(in io.Reader, out, errOut io.Writer) remotecommand.StreamOptions {
	return remotecommand.StreamOptions{Stdin: in, Stdout: out, Stderr: printable.NewWriter(errOut)}
}

// copyEnd is a path on this computer, or in a VM.
type copyEnd struct{ user, name, path string }

// parseCopyEnd reads a path as scp does: a colon before any slash comes after a host.
func parseCopyEnd(text string) (copyEnd, error) {
	host, path, remote := strings.Cut(text, ":")
	if !remote || strings.Contains(host, "/") {
		return copyEnd{path: text}, nil
	}
	user, name, err := splitTarget(host)
	return copyEnd{user: user, name: name, path: path}, err
}

func (e copyEnd) scpArgument(login destination) string {
	if e.name == "" {
		return e.path
	}
	host := login.host
	if user := cmp.Or(e.user, login.user); user != "" {
		host = user + "@" + host
	}
	return host + ":" + e.path
}
