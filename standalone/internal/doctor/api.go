// Copyright The Drover Authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/discovery"
	coordination "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"

	"cloudnative.tw/drover/cmd/kubectl-vm/findings"
	"cloudnative.tw/drover/config/crd"
	"cloudnative.tw/drover/internal/leader"
	"cloudnative.tw/drover/standalone/internal/datadir"
	"cloudnative.tw/drover/standalone/internal/kubeconfig"
	"cloudnative.tw/drover/standalone/internal/pki"
)

// certificateFacts are about the certificates of the installation.
type certificateFacts struct {
	certificates []pki.Certificate
	runs         bool
	now          time.Time
	exists       bool
}

func gatherCertificates(_ context.Context, h *Host) certificateFacts {
	f := certificateFacts{runs: h.runs(), now: h.Clock.Now()}
	if _, err := os.Stat(h.Layout.PKI()); err == nil {
		f.exists = true
		f.certificates = (&pki.Store{Dir: h.Layout.PKI(), Clock: h.Clock}).Inspect()
	}
	return f
}

// lateRenewal is how long after it is due a certificate counts as not renewed.
const lateRenewal = time.Hour

func judgeCertificates(f certificateFacts) []findings.Finding {
	if !f.exists {
		return nil
	}
	var all []findings.Finding
	first := time.Time{}
	for i, c := range f.certificates {
		if problem, is := f.judge(c, i == 0); is {
			all = append(all, problem)
		}
		if c.Err == nil && (first.IsZero() || c.NotAfter.Before(first)) {
			first = c.NotAfter
		}
	}
	if len(all) == 0 {
		all = append(all, findings.OK("valid until %s at least, and renewed before", first.Format(time.DateOnly)))
	}
	return all
}

func (f certificateFacts) judge(c pki.Certificate, isAuthority bool) (problem findings.Finding, is bool) {
	const restart = "start Drover again, which renews it"
	switch {
	case errors.Is(c.Err, fs.ErrPermission):
		return findings.Note("%s: %v", c.File, c.Err).Means("Whether it is valid is unknown."), true
	case c.Err != nil && isAuthority:
		return findings.Warning("%s: %v", c.File, c.Err).Means("The next start makes a new authority, and copies of the kubeconfig elsewhere stop working.").
			FixedBy("restore the file from a backup, or start Drover and copy the kubeconfig again"), true
	case c.Err != nil:
		return findings.Warning("%s: %v", c.File, c.Err).Means("The next start makes it again."), true
	case f.now.Before(c.NotBefore):
		return findings.Error("%s is valid from %s on", c.File, c.NotBefore.Format(time.RFC3339)).
			Means("The clock was set back. Nothing can connect to the API.").FixedBy("set the clock, or start Drover again"), true
	case !f.runs && f.now.After(c.RenewAt):
		return findings.Note("%s ends on %s", c.File, c.NotAfter.Format(time.DateOnly)).Means("The next start renews it."), true
	case f.now.After(c.NotAfter):
		return findings.Error("%s has ended on %s", c.File, c.NotAfter.Format(time.DateOnly)).Means("Nothing can connect to the API.").FixedBy(restart), true
	case f.now.After(c.RenewAt.Add(lateRenewal)):
		return findings.Warning("%s ends on %s, and was due for renewal on %s", c.File, c.NotAfter.Format(time.DateOnly), c.RenewAt.Format(time.DateOnly)).
			Means("Drover could not renew it; the log says why.").FixedBy(restart), true
	case c.IsForeign:
		return findings.Warning("%s was signed by another authority", c.File).Means("Nothing can connect with it.").FixedBy(restart), true
	}
	return findings.Finding{}, false
}

// kubeconfigFacts are about the kubeconfig of people.
type kubeconfigFacts struct {
	path    string
	exists  bool // there is a data dir
	err     error
	server  string
	want    string // the URL of the Drover that runs, "" if that is not known
	sameCA  bool
	expires time.Time
	now     time.Time
	asOwner string // a kubectl of the user who may read it
}

func gatherKubeconfig(_ context.Context, h *Host) kubeconfigFacts {
	f := kubeconfigFacts{path: h.Layout.Kubeconfig(), now: h.Clock.Now(), asOwner: "sudo drover kubectl --kubeconfig " + h.Layout.Kubeconfig() + " get vms"}
	f.exists, _ = h.Layout.Exists()
	config, err := h.ClientConfig()
	if err != nil {
		f.err = err
		return f
	}
	f.server = config.Host
	if h.runs() && h.State != nil {
		f.want = h.State.URL
	}
	ca, _, err := datadir.Read((&pki.Store{Dir: h.Layout.PKI()}).CABundle())
	f.sameCA = err != nil || strings.TrimSpace(string(ca)) == strings.TrimSpace(string(config.CAData))
	own, err := pki.ParseCertificate(config.CertData)
	if f.err = err; err == nil {
		f.expires = own.NotAfter
	}
	return f
}

// ClientConfig returns the connection of the data dir's kubeconfig.
func (h *Host) ClientConfig() (*rest.Config, error) {
	config, err := kubeconfig.Read(h.Layout.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.Timeout = findings.DefaultWithin
	config.UserAgent = "drover/" + h.Version
	return config, nil
}

func judgeKubeconfig(f kubeconfigFacts) []findings.Finding {
	const restart = "start Drover again, which writes it"
	switch {
	case !f.exists, errors.Is(f.err, fs.ErrNotExist):
		return nil
	case errors.Is(f.err, fs.ErrPermission):
		return one(findings.Note("%v", f.err).Means("kubectl of this user cannot use it.").
			FixedBy("give yourself a kubeconfig of your own, or use it as its owner").FixedByCommand("%s", f.asOwner))
	case f.err != nil:
		return one(findings.Warning("%s: %v", f.path, f.err).Means("kubectl cannot use it.").FixedBy(restart))
	case f.want != "" && f.server != f.want:
		return one(findings.Warning("%s names %s, and Drover serves on %s", f.path, f.server, f.want).Means("kubectl reaches another server, or none.").FixedBy(restart))
	case !f.sameCA:
		return one(findings.Warning("%s has another certificate authority than Drover", f.path).Means("kubectl refuses the connection.").FixedBy(restart))
	case f.now.After(f.expires):
		return one(findings.Warning("the certificate in %s has ended on %s", f.path, f.expires.Format(time.DateOnly)).Means("The API refuses it.").FixedBy(restart))
	}
	return one(findings.OK("it names %s, and is valid until %s", f.server, f.expires.Format(time.DateOnly)))
}

// apiFacts are about the API server.
type apiFacts struct {
	asked   bool // it should answer, and there is a kubeconfig
	url     string
	version string
	unready string // what /readyz says is wrong
	err     error
	skew    time.Duration // of its clock, ahead of this one
}

// gatherAPI asks a Drover that runs.
func gatherAPI(ctx context.Context, h *Host) apiFacts {
	config, err := h.ClientConfig()
	if err != nil || !h.runs() {
		return apiFacts{}
	}
	f := apiFacts{asked: true, url: config.Host}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		f.err = err
		return f
	}
	if info, err := client.ServerVersion(); err != nil {
		f.err = err
		return f
	} else if f.version = info.GitVersion; f.version == "" {
		f.version = "of an unknown version"
	}
	f.unready = FailedChecks(ctx, client.RESTClient())
	f.skew, f.err = measureSkew(ctx, h, config)
	return f
}

// FailedChecks returns the checks of /readyz that fail, "" for none.
func FailedChecks(ctx context.Context, client rest.Interface) string {
	text, err := client.Get().AbsPath("/readyz").Param("verbose", "").DoRaw(ctx)
	if err == nil {
		return ""
	}
	var failed []string
	for line := range strings.Lines(string(text)) {
		if name, is := strings.CutPrefix(line, "[-]"); is {
			name, _, _ = strings.Cut(name, " ")
			failed = append(failed, name)
		}
	}
	if len(failed) == 0 {
		return err.Error()
	}
	return strings.Join(failed, ", ")
}

// measureSkew compares the clocks by the header Date, which has whole seconds.
func measureSkew(ctx context.Context, h *Host, config *rest.Config) (time.Duration, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return 0, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, config.Host+"/livez", http.NoBody)
	if err != nil {
		return 0, err
	}
	before := h.Clock.Now()
	response, err := client.Do(request)
	if err != nil {
		return 0, err
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(response.Body, 1<<16))
	_ = response.Body.Close()
	date, err := http.ParseTime(response.Header.Get("Date"))
	if err != nil {
		return 0, nil //nolint:nilerr // It shows no time, which is allowed.
	}
	after := h.Clock.Now()
	if date.Before(before.Truncate(time.Second)) {
		return date.Sub(before), nil
	}
	return max(0, date.Sub(after)), nil
}

// tolerableSkew is by how much clocks may differ.
const tolerableSkew = 2 * time.Second

func judgeAPI(f apiFacts) []findings.Finding {
	switch {
	case !f.asked:
		return nil
	case f.err != nil:
		return one(findings.Error("%s does not answer: %v", f.url, f.err).Means("Drover runs, and cannot be used.").
			FixedBy("look into the log, then start Drover again; servers go on running"))
	case f.unready != "":
		return one(findings.Error("Kubernetes %s at %s is not ready: %s", f.version, f.url, f.unready).
			Means("Requests fail or hang.").FixedBy("look into the log; a full or slow disk is the usual cause"))
	case f.skew > tolerableSkew || f.skew < -tolerableSkew:
		return one(findings.Warning("Kubernetes %s at %s has a clock that is off by %v", f.version, f.url, f.skew.Round(time.Second)).
			Means("Times that it writes look wrong here.").FixedBy("synchronise the clocks of both hosts"))
	}
	return one(findings.OK("Kubernetes %s at %s is ready", f.version, f.url))
}

// crdFacts are about the VirtualMachine API.
type crdFacts struct {
	asked   bool
	missing string
	served  bool
	err     error
}

func gatherCRD(ctx context.Context, h *Host) crdFacts {
	config, err := h.ClientConfig()
	if err != nil || !h.runs() {
		return crdFacts{}
	}
	client, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return crdFacts{asked: true, err: err}
	}
	f := crdFacts{asked: true}
	f.missing, f.served, f.err = crd.FindMissing(ctx, client.RESTClient())
	return f
}

func judgeCRD(f crdFacts) []findings.Finding {
	switch {
	case !f.asked:
		return nil
	case f.err != nil:
		return one(findings.Warning("the VirtualMachine API cannot be read: %v", f.err).Means("Whether it fits this program is unknown."))
	case !f.served:
		return one(findings.Error("the API server knows no VirtualMachines").Means("No VM can be made or seen.").
			FixedBy("start Drover again, which installs the API"))
	case f.missing != "":
		return one(findings.Warning("the VirtualMachine API has no %s, which this program writes", f.missing).
			Means("The Drover that runs is older than this program.").FixedBy("start Drover again, which installs its API"))
	}
	return one(findings.OK("the VirtualMachine API is this program's, or newer"))
}

// leaderFacts are about who leads.
type leaderFacts struct {
	asked bool
	lease *coordinationv1.Lease // nil if there is none
	claim string                // the Lease that leads in the cluster
	err   error
	now   time.Time
}

// Names of the Lease of `drover up`.
const (
	leaseName      = "drover-controller"
	leaseNamespace = metav1.NamespaceDefault
)

// Lease reads the Lease by which the controller leads; nil if there is none.
func Lease(ctx context.Context, config *rest.Config) (lease *coordinationv1.Lease, claim string, err error) {
	client, err := coordination.NewForConfig(config)
	if err != nil {
		return nil, "", err
	}
	lease, err = client.Leases(leaseNamespace).Get(ctx, leaseName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	held, err := client.Leases(metav1.NamespaceSystem).Get(ctx, leader.ClaimName, metav1.GetOptions{})
	if err == nil && held.Spec.HolderIdentity != nil {
		claim = *held.Spec.HolderIdentity
	}
	return lease, claim, nil
}

func gatherLeader(ctx context.Context, h *Host) leaderFacts {
	config, err := h.ClientConfig()
	if err != nil || !h.runs() || h.WithoutController {
		return leaderFacts{}
	}
	f := leaderFacts{asked: true, now: h.Clock.Now()}
	f.lease, f.claim, f.err = Lease(ctx, config)
	return f
}

func judgeLeader(f leaderFacts) []findings.Finding {
	const own = leaseNamespace + "/" + leaseName
	switch {
	case !f.asked:
		return nil
	case f.err != nil:
		return one(findings.Warning("the Lease cannot be read: %v", f.err).Means("Whether a controller acts is unknown."))
	case f.lease == nil || f.lease.Spec.HolderIdentity == nil || *f.lease.Spec.HolderIdentity == "" || f.lease.Spec.RenewTime == nil:
		return one(findings.Warning("no controller leads").Means("VMs are not looked after. That is so for a moment after a start."))
	case f.claim != "" && f.claim != own:
		return one(findings.Error("another Drover leads here, by the Lease %s", f.claim).Means("This one does nothing while that one acts.").
			FixedBy("remove one of them; the event LeaderConflict says more"))
	}
	age := f.now.Sub(f.lease.Spec.RenewTime.Time)
	text := fmt.Sprintf("%s leads, its Lease renewed %s ago", *f.lease.Spec.HolderIdentity, duration.HumanDuration(max(age, 0)))
	if age > leaseTerm(f.lease) {
		return one(findings.Error("%s", text).Means("The controller hangs or has ended: VMs are not looked after.").
			FixedBy("look into the log, then start Drover again; servers go on running"))
	}
	return one(findings.OK("%s", text))
}

// leaseTerm is how long a Lease lasts.
func leaseTerm(l *coordinationv1.Lease) time.Duration {
	if l.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	return time.Duration(*l.Spec.LeaseDurationSeconds) * time.Second
}
