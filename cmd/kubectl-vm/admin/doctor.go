// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/apimachinery/pkg/version"

	streamsapi "cloudnative.tw/drover/apis/streams/v1alpha1"
	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/cmd/kubectl-vm/kit"
	"cloudnative.tw/drover/cmd/kubectl-vm/printable"
	"cloudnative.tw/drover/cmd/kubectl-vm/streams"
	"cloudnative.tw/drover/config/crd"
)

// exitDoctorUsage is the exit code of doctor for wrong flags. Exit code 1 means that doctor has found an error.
const exitDoctorUsage = 2

type doctorOptions struct {
	*kit.Options
	droverNamespace string
	output          kit.JSONFlag
}

// NewDoctorCommand returns the command doctor.
func NewDoctorCommand(o *kit.Options) *cobra.Command {
	d := &doctorOptions{Options: o}
	asUsageError := func(err error) error {
		if err == nil {
			return nil
		}
		return &kit.ExitError{Code: exitDoctorUsage, Err: err}
	}
	cmd := &cobra.Command{
		Use:     "doctor",
		GroupID: kit.GroupObserve,
		Short:   "Check whether Drover works in this cluster",
		Long: "Check what a user of the cluster can see of Drover: the VirtualMachine API and its version, the\n" +
			"controller, and the server of consoles and logs. It changes nothing. \"kubectl auth can-i --list\"\n" +
			"shows your own rights.\n\n" +
			"The exit code is 0 without errors, 1 with errors and 2 for a wrong flag. On the host itself,\n" +
			"\"drover doctor\" checks much more.",
		Example: o.FormatExamples("doctor", "doctor -o json"),
		Args: func(cmd *cobra.Command, args []string) error {
			return asUsageError(cobra.NoArgs(cmd, args))
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := d.output.Check(); err != nil {
				return asUsageError(err)
			}
			return d.checkCluster(cmd.Context())
		},
	}
	d.output.AddFlag(cmd, "output format: json")
	cmd.Flags().StringVar(&d.droverNamespace, "drover-namespace", "drover-system", "namespace of Drover, which has its Lease")
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return asUsageError(err) })
	return cmd
}

func (d *doctorOptions) checkCluster(ctx context.Context) error {
	const server, drover = "API server", "Drover"
	found := findings.Run(ctx, []findings.Check{
		{Group: server, Name: "version", Run: func(ctx context.Context) []findings.Finding { return judgeServer(d.gatherServer(ctx)) }},
		{Group: server, Name: "crd", Run: func(ctx context.Context) []findings.Finding { return judgeCRD(d.gatherCRD(ctx)) }},
		{Group: drover, Name: "controller", Run: func(ctx context.Context) []findings.Finding { return judgeController(d.gatherController(ctx)) }},
		{Group: drover, Name: "streams", Run: func(ctx context.Context) []findings.Finding { return judgeStreams(d.gatherStreams(ctx)) }},
	})
	var err error
	if d.output.IsSet() {
		err = printable.JSON(d.Out, findings.NewReport(found))
	} else {
		s := kit.TerminalOf(d.Out)
		if !s.IsTerminal {
			s.Width = 80
		}
		err = findings.Print(d.Out, found, findings.Style{Width: min(s.Width, kit.ReadableWidth), Color: s.HasColors})
	}
	if err == nil && findings.Worst(found) == findings.LevelError {
		return &kit.ExitError{Code: 1} // the findings have been printed
	}
	return err
}

type serverFacts struct {
	url     string
	version string
	err     error
}

func (d *doctorOptions) gatherServer(ctx context.Context) serverFacts {
	c, err := d.Core()
	if err != nil {
		return serverFacts{err: err}
	}
	f := serverFacts{url: c.Get().URL().Host}
	text, err := c.Get().AbsPath("/version").DoRaw(ctx)
	var info version.Info
	if f.err = err; err == nil {
		f.err = json.Unmarshal(text, &info)
	}
	f.version = info.GitVersion
	return f
}

func judgeServer(f serverFacts) []findings.Finding {
	switch {
	case apierrors.IsUnauthorized(f.err):
		return oneFinding(findings.Error("the API server at %s does not accept your login", f.url).Means("Nothing can be done in this cluster.").
			FixedBy("log in again, or name another user or cluster with --context"))
	case f.err != nil:
		return oneFinding(findings.Error("the API server does not answer: %v", f.err).Means("Nothing can be done in this cluster.").
			FixedBy("check --context, the network and the cluster"))
	}
	return oneFinding(findings.OK("Kubernetes %s at %s", f.version, f.url))
}

// isAway reports whether the API server has not answered. The check of the API server reports this.
func isAway(err error) bool {
	_, found := errors.AsType[*url.Error](err)
	return found
}

type crdFacts struct {
	missing string
	served  bool
	err     error
}

func (d *doctorOptions) gatherCRD(ctx context.Context) crdFacts {
	c, err := d.Core()
	if err != nil {
		return crdFacts{err: err}
	}
	f := crdFacts{}
	f.missing, f.served, f.err = crd.FindMissing(ctx, c)
	return f
}

func judgeCRD(f crdFacts) []findings.Finding {
	const group = "cloudnative.tw/v1alpha1"
	switch {
	case isAway(f.err):
		return nil
	case f.err != nil:
		return oneFinding(findings.Warning("the API %s cannot be read: %v", group, f.err).Means("Whether Drover is installed is unknown."))
	case !f.served:
		return oneFinding(findings.Error("this cluster does not know VirtualMachines").Means("Drover is not installed in this cluster.").
			FixedBy("install Drover (docs/cluster.md), or name another cluster with --context"))
	case f.missing != "":
		return oneFinding(findings.Warning("the API %s of the cluster has no %s", group, f.missing).
			Means("The cluster's Drover is older than this program, which may offer fields that this Drover does not know.").FixedBy("upgrade Drover, its CRD first"))
	}
	return oneFinding(findings.OK("VirtualMachines %s, this program's version or newer", group))
}

type controllerFacts struct {
	program   string // the command with which the user calls this program
	leaseName string // with the namespace
	lease     *coordinationv1.Lease
	forbidden bool
	err       error
	now       time.Time
}

// gatherController reads the Lease of the controller that leads. The cluster's claim names this Lease.
// Without a claim, gatherController reads the Lease with the usual name.
func (d *doctorOptions) gatherController(ctx context.Context) controllerFacts {
	f := controllerFacts{program: d.Program, leaseName: d.droverNamespace + "/drover-controller", now: d.Clock.Now()}
	c, err := d.NewGroupClient("/apis", coordinationv1.SchemeGroupVersion, coordinationv1.AddToScheme)
	if err != nil {
		f.err = err
		return f
	}
	get := func(qualifiedName string) (*coordinationv1.Lease, error) {
		namespace, name, _ := strings.Cut(qualifiedName, "/")
		lease := &coordinationv1.Lease{}
		return lease, c.Get().Namespace(namespace).Resource("leases").Name(name).Do(ctx).Into(lease)
	}
	claim, err := get("kube-system/drover-leader")
	if err == nil && claim.Spec.HolderIdentity != nil && strings.Contains(*claim.Spec.HolderIdentity, "/") {
		f.leaseName = *claim.Spec.HolderIdentity
	}
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		f.err = err
		return f
	}
	lease, err := get(f.leaseName)
	switch {
	case apierrors.IsForbidden(err):
		f.forbidden = true
	case apierrors.IsNotFound(err):
	case err != nil:
		f.err = err
	default:
		f.lease = lease
	}
	return f
}

func judgeController(f controllerFacts) []findings.Finding {
	const unattended = "Drover does not act on VMs: your changes have no effect."
	switch {
	case isAway(f.err):
		return nil
	case f.err != nil:
		return oneFinding(findings.Warning("the Lease %s cannot be read: %v", f.leaseName, f.err).Means("Whether the controller runs is unknown."))
	case f.forbidden:
		return oneFinding(findings.Note("you may not read the Lease %s", f.leaseName).
			Means("So this check cannot see whether the controller runs. %s explain NAME tells if the controller has not seen a VM for a while.", f.program))
	case f.lease == nil, f.lease.Spec.HolderIdentity == nil, *f.lease.Spec.HolderIdentity == "", f.lease.Spec.RenewTime == nil:
		return oneFinding(findings.Error("no controller has the Lease %s", f.leaseName).Means(unattended).
			FixedBy("start drover-controller; if it runs elsewhere, name its namespace with --drover-namespace"))
	}
	age := max(0, f.now.Sub(f.lease.Spec.RenewTime.Time))
	term := time.Minute
	if s := f.lease.Spec.LeaseDurationSeconds; s != nil {
		term = time.Duration(*s) * time.Second
	}
	text := fmt.Sprintf("%s leads, and renewed the Lease %s %s ago", *f.lease.Spec.HolderIdentity, f.leaseName, duration.HumanDuration(age))
	if age > term+clockSlack {
		return oneFinding(findings.Error("%s", text).Means("%s", unattended).
			FixedBy("look at the pods of drover-controller; if your clock is wrong by %s, set it", duration.HumanDuration(age)))
	}
	return oneFinding(findings.OK("%s", text))
}

// clockSlack is how much this computer's clock may be ahead of the controller's clock.
const clockSlack = 15 * time.Second

type streamsFacts struct {
	host string // the server of streams, "" if it was not found
	err  error  // why the server cannot be reached
}

func (d *doctorOptions) gatherStreams(ctx context.Context) streamsFacts {
	config, err := d.RESTConfig()
	if err != nil {
		return streamsFacts{err: err}
	}
	c, err := streams.Discover(ctx, config)
	if err != nil {
		return streamsFacts{err: err}
	}
	defer c.Close()
	f := streamsFacts{host: c.Host()}
	body, err := c.GetPath(ctx, streamsapi.PathPrefix)
	switch status := apierrors.APIStatus(nil); {
	case err == nil:
		_ = body.Close()
	case !errors.As(err, &status), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		f.err = err // any other answer shows that the path is served
	}
	return f
}

func judgeStreams(f streamsFacts) []findings.Finding {
	const meaning = "Consoles, logs, commands and port-forward work only for VMs that are pods; everything else works."
	switch unknown := f.host == ""; {
	case unknown && isAway(f.err):
		return nil
	case unknown && apierrors.IsNotFound(f.err):
		return oneFinding(findings.Note("%v", f.err).Means(meaning))
	case unknown && apierrors.IsForbidden(f.err):
		return oneFinding(findings.Warning("%v", f.err).Means(meaning).FixedBy("apply Drover's RBAC, which lets every user read the ConfigMap"))
	case f.err != nil:
		return oneFinding(findings.Warning("consoles and logs cannot be reached: %v", f.err).Means(meaning).
			FixedBy("check the network and the Service of the streams"))
	}
	return oneFinding(findings.OK("consoles and logs are served at %s", f.host))
}

func oneFinding(f findings.Finding) []findings.Finding { return []findings.Finding{f} }
