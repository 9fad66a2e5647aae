"""Style sheet and script of the HTML page; the page loads nothing from anywhere."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--page:#f6f7f8;--card:#fff;--ink:#1b1f24;--soft:#545d68;--line:#d9dee3;
--accent:#0b5cad;--before:#a8471c;--after:#0b5cad;--good:#176b34;--bad:#a3222b;--warn:#7d4a00;
--code:#f3f5f7;--good-bg:#e3f3e7;--bad-bg:#fbe6e6;--warn-bg:#fbf0dc;--plain-bg:#eceff2;--mark:#fff3c4;
--memory:#dfe4e9;--op:#fdf1ea;--op-line:#c98a6a;--kernel:#e6f0fa;--kernel-line:#5d97cc;
--k:#8a2f7c;--s:#23692d;--c:#5c656e;--n:#8a4b08;--f:#0b5cad}
@media (prefers-color-scheme:dark){:root{--page:#121518;--card:#1b1f24;--ink:#e7eaed;--soft:#a6b0ba;
--line:#333a42;--accent:#7ab8f5;--before:#f0a27c;--after:#7ab8f5;--good:#86d79a;--bad:#ff9d98;
--warn:#f0bd6b;--code:#14181c;--good-bg:#17301f;--bad-bg:#3a1c1e;--warn-bg:#35280f;--plain-bg:#272d34;
--mark:#3d3514;--memory:#2c333b;--op:#33251d;--op-line:#9a6a50;--kernel:#182b3d;--kernel-line:#4a80b3;
--k:#e49bd8;--s:#95d49c;--c:#98a2ac;--n:#f0b97d;--f:#8cc4f7}}
*{box-sizing:border-box}
body{margin:0;overflow-wrap:break-word;background:var(--page);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main,header,footer{max-width:1120px;margin:0 auto;padding:0 24px}
header{padding-top:36px}header .lead{margin:-6px 0 18px;max-width:50em}
.skip{position:absolute;left:-999px}.skip:focus{left:8px;top:8px;background:var(--card);padding:6px}
.run{color:var(--soft);margin:0;overflow-wrap:anywhere}
h1{font-size:27px;line-height:1.25;margin:4px 0 18px;letter-spacing:-.01em;max-width:34em;overflow-wrap:anywhere}
h2{font-size:20px;margin:40px 0 12px}
h3{font-size:17px;margin:0;overflow-wrap:anywhere}
h4{font-size:13px;margin:24px 0 8px;color:var(--soft);font-weight:600}
a{color:var(--accent)}
.facts{display:grid;grid-template-columns:repeat(auto-fit,minmax(195px,1fr));gap:12px;margin:0}
.fact{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 14px}
.fact dt{color:var(--soft);font-size:13px}.fact dd{margin:0}
.fact .figure{font-size:15px;line-height:1.7;font-weight:600;font-variant-numeric:tabular-nums}
.fact .why{color:var(--soft);font-size:13px;line-height:1.4;overflow-wrap:anywhere}
.notes{margin:16px 0 0;padding:10px 14px 10px 32px;background:var(--warn-bg);border-radius:8px;font-size:14px}
.notes li{overflow-wrap:anywhere}
.card{background:var(--card);border:1px solid var(--line);border-radius:10px;padding:20px 22px;margin:0 0 18px}
.scroll{overflow-x:auto;background:var(--card);border:1px solid var(--line);border-radius:10px}
.scroll:focus-visible,pre:focus-visible{outline:2px solid var(--accent)}
table{border-collapse:collapse;width:100%;font-size:14px;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:8px 12px;border-bottom:1px solid var(--line);vertical-align:top}
tbody tr:last-child>*{border-bottom:0}
thead th{font-size:13px;color:var(--soft);font-weight:600;white-space:nowrap}
th .muted{font-weight:400}
.num{text-align:right;white-space:nowrap}td.where,th.where{overflow-wrap:anywhere;min-width:11em}.nowrap{white-space:nowrap}
.bar{display:block;height:5px;background:var(--plain-bg);border-radius:3px;margin-top:5px;min-width:70px}
.bar i{display:block;height:5px;border-radius:3px;background:var(--accent)}
.tag{display:inline-block;border-radius:999px;padding:1px 10px;font-size:13px;background:var(--plain-bg);white-space:nowrap}
.tag.good{background:var(--good-bg);color:var(--good)}.tag.bad{background:var(--bad-bg);color:var(--bad)}
.tag.warn{background:var(--warn-bg);color:var(--warn)}
.top{display:flex;gap:12px;align-items:baseline;flex-wrap:wrap}.top .tag{margin-left:auto}
.id{color:var(--accent);font-weight:700}
.lead{margin:8px 0 0;font-size:16px;overflow-wrap:anywhere}.muted{color:var(--soft)}
.next{margin:14px 0 0;padding:10px 14px;border-left:3px solid var(--accent);background:var(--code);overflow-wrap:anywhere}
code,pre{font:13px/1.55 ui-monospace,SFMono-Regular,"JetBrains Mono",Menlo,Consolas,monospace}
pre{background:var(--code);border:1px solid var(--line);border-radius:8px;padding:12px 14px;overflow:auto;margin:8px 0;max-height:36em;tab-size:4}
pre .no{color:var(--soft);user-select:none;display:inline-block;min-width:2.6em}
.k{color:var(--k)}.s{color:var(--s)}.c{color:var(--c);font-style:italic}.n{color:var(--n)}.d{color:var(--k)}.f,.b{color:var(--f)}
.verdicts{display:grid;grid-template-columns:repeat(auto-fit,minmax(230px,1fr));gap:10px;list-style:none;padding:0;margin:0}
.verdicts li{border:1px solid var(--line);border-radius:8px;padding:9px 12px;font-size:14px}
.verdicts b{display:block}.yes b{color:var(--good)}.no b{color:var(--warn)}
details{margin-top:12px;overflow-x:auto}summary{cursor:pointer;color:var(--accent);font-weight:600;font-size:14px}
.pair{display:grid;grid-template-columns:9em 1fr 7.5em;gap:2px 12px;align-items:center;font-size:14px;font-variant-numeric:tabular-nums}
.pair .name{grid-row:span 2}.pair span.track{height:11px;border-radius:3px}
.pair i{display:block;height:11px;border-radius:3px;background:var(--before);min-width:2px}.pair i.after{background:var(--after)}
svg{display:block;width:100%;height:auto;max-width:860px}
svg text{font-family:system-ui,-apple-system,"Segoe UI",Roboto,Arial,sans-serif;fill:var(--ink);font-size:13px}
.flow-title{font-weight:600;font-size:14px!important}.flow-note,.arrow-text,.tick,.axis,.roof-text{fill:var(--soft)!important}
.arrow-text{font-size:11.5px!important}.memory{fill:var(--memory)}.memory-text{font-size:12px!important;fill:var(--soft)!important}
.op{fill:var(--op);stroke:var(--op-line)}.kernel{fill:var(--kernel);stroke:var(--kernel-line);stroke-width:1.5}
line.read,line.write{stroke-width:1.5}.read{stroke:var(--soft)}.write{stroke:var(--before)}
.read-head{fill:var(--soft)}.write-head{fill:var(--before)}
.grid{stroke:var(--line)}.roof{fill:none;stroke:var(--soft);stroke-width:2}.cache{stroke-dasharray:5 4}
.move{stroke:var(--soft);stroke-dasharray:3 3}.point.before{fill:var(--before)}.point.after{fill:var(--after)}
.point-text{font-weight:600}.key{display:flex;gap:18px;font-size:13px;color:var(--soft);margin:6px 0 0}
.key i{display:inline-block;width:10px;height:10px;border-radius:50%;margin-right:6px;background:var(--before)}.key i.after{background:var(--after)}
.filter{display:flex;gap:10px;align-items:center;margin:0 0 10px;flex-wrap:wrap}
.filter input{font:inherit;color:inherit;background:var(--card);border:1px solid var(--soft);border-radius:6px;padding:6px 10px;min-width:min(340px,100%)}
.filter[hidden]{display:none}
.all{margin:0 0 10px;font-size:14px}.all input{margin:0 8px 0 0}
.all:has(input:not(:checked))+.scroll table:not(.filtered) .more{display:none}
.filter span{color:var(--soft);font-size:14px}
th button{all:unset;cursor:pointer;color:inherit;font-weight:600}th button:focus-visible,summary:focus-visible{outline:2px solid var(--accent);outline-offset:2px}
th button::after{content:"\\2195";content:"\\2195" / "";margin-left:5px;opacity:.55}
th[aria-sort=ascending] button::after{content:"\\2191";content:"\\2191" / "";opacity:1}th[aria-sort=descending] button::after{content:"\\2193";content:"\\2193" / "";opacity:1}
.tree{background:var(--card);border:1px solid var(--line);border-radius:10px;margin-top:14px;padding:8px 14px;overflow-x:auto}
.tree details{margin:0;overflow:visible;padding-left:14px}.tree>details{padding-left:0}.tree .leaf{padding-left:28px}.tree>.leaf{padding-left:14px}
.tree summary,.tree .leaf{display:flex;gap:12px;align-items:center;font-size:14px;font-weight:400;color:var(--ink);padding-top:4px;padding-bottom:4px;border-bottom:1px solid var(--line);min-width:640px}
.tree summary::before{content:"\\25b8";content:"\\25b8" / "";color:var(--soft);width:14px;margin-right:-12px}.tree details[open]>summary::before{content:"\\25be";content:"\\25be" / ""}
.tree .leaf.head{color:var(--soft);font-size:13px;font-weight:600;padding-left:0}.tree .leaf.head .bar{background:none}
.tree .module{flex:1 1 auto;min-width:12em;overflow-wrap:anywhere}.tree .num{flex:0 0 5.6em;font-variant-numeric:tabular-nums}.tree .bar{flex:0 0 90px;margin:0}
footer{color:var(--soft);font-size:13px;padding-top:28px;padding-bottom:40px;overflow-wrap:anywhere}
@media (max-width:640px){.facts{grid-template-columns:repeat(2,1fr)}main,header,footer{padding-left:14px;padding-right:14px}.card{padding:14px}h1{font-size:22px}}
article{content-visibility:auto;contain-intrinsic-size:auto 900px}
@media print{article{content-visibility:visible}details{display:block}pre{max-height:none}.filter{display:none}body{background:#fff}}
""".strip()

# Sorts and filters tables; without scripts they are complete, ranked, and the fields are not there.
SCRIPT = """
(function(){'use strict';
function list(root,what){return Array.prototype.slice.call(root.querySelectorAll(what));}
list(document,'.filter').forEach(function(field){
var table=document.getElementById(field.getAttribute('data-for'));if(!table)return;
var rows=list(table,'tbody tr'),input=field.querySelector('input');
if(rows.length<6)return;
var count=field.querySelector('.shown');
var texts=rows.map(function(row){return row.textContent.toLowerCase();});
function show(){var wanted=input.value.toLowerCase(),shown=0;
rows.forEach(function(row,at){var yes=texts[at].indexOf(wanted)>=0;row.hidden=!yes;if(yes)shown++;
var link=row.querySelector('th a[href^="#"]');
var card=link&&document.getElementById(link.getAttribute('href').slice(1));
if(card)card.hidden=!yes;});
table.classList.toggle('filtered',wanted!=='');
count.textContent=shown+' of '+rows.length+' shown';}
input.addEventListener('input',show);field.hidden=false;show();});
function value(row,column){var cell=row.cells[column],v=cell.getAttribute('data-v');
return v===null?cell.textContent.trim().toLowerCase():parseFloat(v);}
list(document,'table.sortable').forEach(function(table){
var bodies=list(table,'tbody'),first=bodies[0].rows.length;
var heads=list(table,'thead th');
heads.forEach(function(head,column){var button=document.createElement('button');
button.type='button';button.textContent=head.textContent;head.textContent='';
head.appendChild(button);
button.addEventListener('click',function(){
var numbers=first>0&&bodies[0].rows[0].cells[column].hasAttribute('data-v');
var before=head.getAttribute('aria-sort');
var up=before?before==='descending':!numbers||column===0;
heads.forEach(function(other){other.removeAttribute('aria-sort');});
head.setAttribute('aria-sort',up?'ascending':'descending');
list(table,'tbody tr').map(function(row,at){return [value(row,column),at,row];}).sort(function(a,b){
return (a[0]<b[0]?-1:a[0]>b[0]?1:0)*(up?1:-1)||a[1]-b[1];
}).forEach(function(item,place){bodies[place<first?0:1].appendChild(item[2]);});});});});
})();
""".strip()
